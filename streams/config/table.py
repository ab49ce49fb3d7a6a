"""Lists the modes and settings of a cluster and a job as text, each with the table that sets it."""

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

from streams.cluster.gray_model import fingerprint
from streams.config.detector_catalogue import DETECTORS, FINDINGS, GRAY, RULES, Detector
from streams.config.settings import Configs, Tuning
from streams.config.toml_file import config_of, knobs_of


def table(tuning: Tuning, cluster: str, job: str | None) -> Iterator[str]:
    """Yield a line for each detector and, indented, for each of its settings; then rules with own modes."""
    configs = tuning.configs(cluster, job)
    for detector in DETECTORS:
        mode, where = tuning.mode(detector.name, cluster, job)
        yield f"{detector.name:<14} {mode:<6} {detector.about}{_origin(where)}"
        yield from _settings(detector, configs, tuning.base)
        if detector is GRAY and configs.gray is not None:
            yield f"  model = {fingerprint(configs.gray)}, {len(configs.gray.features)} features"
    for rule in sorted(RULES):
        mode, where = tuning.mode("", cluster, job, rule=rule)
        if where:
            yield f"{rule:<14} {mode:<6} one rule alone{_origin(where)}"
    yield f"{FINDINGS.name:<14} {'':<6} {FINDINGS.about}"
    yield from _settings(FINDINGS, configs, tuning.base)


def _settings(detector: Detector, configs: Configs, base: Configs) -> Iterator[str]:
    usual = dict(_flat(knobs_of(config_of(detector, base), detector.only)))
    for name, value in _flat(knobs_of(config_of(detector, configs), detector.only)):
        changed = "" if value == usual[name] else f"  (default {usual[name]:g})"
        yield f"  {name} = {value:g}{changed}"


def _flat(knobs: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in knobs.items():
        if is_dataclass(value):
            yield from _flat(knobs_of(value), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _origin(where: str | None) -> str:
    return f"  [{where}]" if where else ""
