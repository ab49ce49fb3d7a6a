"""The tables of ``slowrank.toml`` that tune detectors, checked to the last key.

[detectors.peer_step]                          for all
[clusters."prod-*".detectors.level_changes]    for clusters
[jobs."rl-*".detectors.peer_step]              for jobs
[detectors.gray] model = "gray.json"           a file, beside this one
[findings], [clusters."prod-a".findings]       when suspicions become a finding
"""

import hashlib
import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from fnmatch import fnmatchcase
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, get_args

from detectors.node.gray_envelope import Envelope
from slowrank.settings import TUNING_TABLES
from streams.cluster.gray_model import read_region
from streams.config.detector_catalogue import DETECTORS, FINDINGS, GRAY, NAMES, RULES, Detector
from streams.config.settings import Configs, Layer, Mode, Tuning, is_pattern, with_knobs

# Settings by name in any table: shares of something; those that may be zero; those of any sign.
_SHARES = frozenset(
    (
        "floor",
        "spread",
        "alarm",
        "hazard",
        "mass_fraction",
        "node_group_share",
        "node_hold_share",
        "min_relative",
    )
)
_FROM_ZERO = frozenset(("warmup", "warmup_steps", "refractory", "lateness_seconds", "queue_seconds"))
_ANY = frozenset(("mu0", "prior_log_odds"))

# Largest count. Chosen: memory and time grow with it.
_MOST = 100_000
# Largest whole number: above it floats are not exact.
_LARGEST = 2**53


class TuningError(ValueError):
    """A table cannot be used; the message has file, key and the allowed values."""


def read_tuning(path: Path, base: Configs | None = None) -> Tuning:
    """Return the tuning in a file; none when there is no such file. Raises ``TuningError``."""
    try:
        tables = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return Tuning(base=base)
    except RecursionError as error:
        raise TuningError(f"{path}: nested too deeply") from error
    except (OSError, ValueError) as error:
        raise TuningError(f"{path}: {error}") from error
    return tuning_of(tables, file=path.name, base=base, folder=path.parent)


def tuning_of(
    tables: Mapping[str, Any], *, file: str, base: Configs | None = None, folder: Path | None = None
) -> Tuning:
    """Return the tuning in the tables of a file; other tables are ignored. Raises ``TuningError``.

    ``folder`` is the base of relative paths in the tables.
    """
    base = _marked(base or Configs(), {name: tables[name] for name in TUNING_TABLES if name in tables})
    if isinstance(tables.get("cluster"), dict) or isinstance(tables.get("job"), dict):
        raise TuningError(f"{file}: tables for clusters and jobs are called [clusters.…] and [jobs.…]")
    try:
        layers = list(_layers(tables, base, folder or Path()))
        _check_together(layers, base)
    except TuningError as error:
        raise TuningError(f"{file}: {error}") from None
    return Tuning(layers, base)


def _marked(base: Configs, tables: Mapping[str, Any]) -> Configs:
    """Return the settings with a fingerprint of the tables; none when there are none."""
    if not any(tables.values()):
        return base
    text = json.dumps(tables, sort_keys=True, default=str)
    mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return replace(base, finding=replace(base.finding, tables=mark))


def allowed(name: str, default: float) -> str | None:
    """Return the allowed values of a setting as text, or None when it cannot be set."""
    if isinstance(default, bool) or not isinstance(default, int | float):
        return None
    kind = f"a whole number up to {_MOST}" if isinstance(default, int) else "a number"
    if name in _ANY:
        return kind
    if name in _SHARES or name.startswith("min_effect"):
        return f"{kind}, above 0 and below 1"
    return f"{kind}, at least 0" if name in _FROM_ZERO else f"{kind}, above 0"


def _layers(tables: Mapping[str, Any], base: Configs, folder: Path) -> Iterator[Layer]:
    yield _layer({k: tables[k] for k in ("detectors", "findings") if k in tables}, base, _Scope(""), folder)
    for owner in ("clusters", "jobs"):
        for pattern, table in _table(tables, owner, owner).items():
            scope = _Scope(f'{owner}."{pattern}"', **{owner.removesuffix("s"): pattern})
            if not isinstance(table, dict):
                raise TuningError(f"[{scope.where}] must be a table")
            yield _layer(table, base, scope, folder)


@dataclass(frozen=True, slots=True)
class _Scope:
    where: str
    cluster: str | None = None
    job: str | None = None

    def of(self, *names: str) -> str:
        return ".".join(part for part in (self.where, *names) if part)


def _layer(table: Mapping[str, Any], base: Configs, scope: _Scope, folder: Path) -> Layer:
    for name in table.keys() - {"detectors", "findings"}:
        raise TuningError(f"[{scope.where}] has {name}; allowed are detectors and findings")
    modes: dict[str, Mode] = {}
    tree: dict[str, Any] = {}
    for name, entry in _table(table, "detectors", scope.of("detectors")).items():
        where = scope.of("detectors", name if name in NAMES else f'"{name}"')
        detector = _detector(name, where)
        if not isinstance(entry, dict):
            raise TuningError(f'[{where}] must be a table, such as {{ mode = "shadow" }}')
        knobs = dict(entry)
        if "mode" in knobs:
            modes[name] = _mode(knobs.pop("mode"), where)
        if detector is GRAY and scope.job is None:
            tree |= _model(knobs, where, folder)
        else:
            _put(tree, detector, _knobs(detector, knobs, base, _Scope(where, job=scope.job)))
    findings = _table(table, "findings", scope.of("findings"))
    _put(tree, FINDINGS, _knobs(FINDINGS, findings, base, _Scope(scope.of("findings"), job=scope.job)))
    return Layer(
        where=scope.of() or "detectors", cluster=scope.cluster, job=scope.job, modes=modes, knobs=tree
    )


def _detector(name: str, where: str) -> Detector:
    if name in RULES:
        return Detector(name, "")
    for detector in DETECTORS:
        if detector.name == name:
            return detector
    known = ", ".join(d.name for d in DETECTORS)
    raise TuningError(
        f'[{where}]: no such detector. There are {known}, and single rules in quotes such as "event.xid.13"'
    )


def _mode(value: Any, where: str) -> Mode:
    if value not in get_args(Mode):
        raise TuningError(f'[{where}] mode = {value!r}: must be "on", "shadow" or "off"')
    mode: Mode = value
    return mode


def _model(given: Mapping[str, Any], where: str, folder: Path) -> dict[str, Envelope]:
    for name in given.keys() - {"model"}:
        raise TuningError(f"[{where}] {name}: no such setting. It has mode and model")
    if "model" not in given:
        return {}
    value = given["model"]
    if not isinstance(value, str):
        raise TuningError(f"[{where}] model = {value!r}: must be the path of what `slowrank gray` wrote")
    try:
        return {"gray": read_region(folder / value)}
    except ValueError as error:
        raise TuningError(f"[{where}] model: {error}") from error


def _knobs(detector: Detector, given: Mapping[str, Any], base: Configs, scope: _Scope) -> dict[str, Any]:
    if given and scope.job is not None and detector.knobs[:1] != ("job",):
        raise TuningError(
            f"[{scope.where}] {next(iter(given))}: only mode can be set for a job here, "
            "as it belongs to nodes, which outlive their jobs; set it in [clusters.…] or for all"
        )
    config = config_of(detector, base)
    return _checked(config, given, scope.where, detector.only) if given else {}


def config_of(detector: Detector, configs: Configs) -> Any:
    """Return the settings of a detector, or None when it has none."""
    config: Any = configs if detector.knobs else None
    for name in detector.knobs:
        config = getattr(config, name)
    return config


def knobs_of(config: Any, only: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the settings that can be set, by name: numbers, and nested settings."""
    if config is None:
        return {}
    values = {f.name: getattr(config, f.name) for f in fields(config) if not only or f.name in only}
    return {k: v for k, v in values.items() if is_dataclass(v) or allowed(k, v) is not None}


def _checked(config: Any, given: Mapping[str, Any], where: str, only: tuple[str, ...] = ()) -> dict[str, Any]:
    known = knobs_of(config, only)
    checked: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            names = ", ".join(known) or "mode alone"
            raise TuningError(f"[{where}] {name}: no such setting. It has {names}")
        default = known[name]
        if is_dataclass(default):
            if not isinstance(value, dict):
                raise TuningError(f"[{where}] {name} must be a table")
            checked[name] = _checked(default, value, f"{where}.{name}")
        else:
            checked[name] = _number(name, value, default, where)
    return checked


def _number(name: str, value: Any, default: float, where: str) -> float:
    rule = allowed(name, default) or ""
    fits = isinstance(value, int) and not isinstance(value, bool)
    fits = fits and abs(value) <= _LARGEST
    fits = fits or (isinstance(value, float) and isinstance(default, float) and math.isfinite(value))
    if fits and name not in _ANY:
        fits = value >= 0 if name in _FROM_ZERO else value > 0
        fits = fits and ("below 1" not in rule or value < 1)
        fits = fits and not (isinstance(default, int) and value > _MOST)
    if not fits:
        raise TuningError(f"[{where}] {name} = {value!r}: must be {rule} (default {default!r})")
    return type(default)(value)


def _put(tree: dict[str, Any], detector: Detector, knobs: dict[str, Any]) -> None:
    if not knobs:
        return
    for name in detector.knobs[:-1]:
        tree = tree.setdefault(name, {})
    tree.setdefault(detector.knobs[-1], {}).update(knobs)


def _table(tables: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise TuningError(f"[{where}] must be a table")
    return table


def _check_together(layers: Sequence[Layer], base: Configs) -> None:
    """Raise on contradictory settings. Each constraint is between two settings, so that pairs of tables
    suffice."""
    with_settings = [layer for layer in layers if layer.knobs]
    for pair in combinations_with_replacement(sorted(with_settings, key=lambda layer: layer.precedence), 2):
        if not _may_meet(*pair):
            continue
        try:
            with_knobs(base, *(layer.knobs for layer in pair))
        except ValueError as error:
            names = " with ".join(dict.fromkeys(f"[{layer.where}]" for layer in pair))
            raise TuningError(f"{names}: {error}") from error


def _may_meet(a: Layer, b: Layer) -> bool:
    """Return whether both tables may apply to one job; two patterns always may."""
    for one, other in ((a.cluster, b.cluster), (a.job, b.job)):
        if one is not None and other is not None and not (fnmatchcase(one, other) or fnmatchcase(other, one)):
            return is_pattern(one) and is_pattern(other)
    return True
