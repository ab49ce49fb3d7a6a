"""The change detector on public series: TCPD control charts (change points) and NAB (anomaly windows).

Sanity floors, not goals to tune for. Strictly online: a change counts at its estimated onset, and the floor
on sigma comes from the first samples of the same series. The data are not in the repository; see --data.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.change import Change, ChangeConfig, ChangeDetectorBank
from detectors.standardise import Scale

FLOOR_SHARE = 0.25
"""Floor on sigma as a share of the standard deviation of a series' first samples."""

DEFAULT_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def main(argv: list[str]) -> int:
    """Print the scores; 0 also when the data are absent, which is said."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks series", description=__doc__)
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help="folder with tcpd/ and nab/")
    options = parser.parse_args(argv)
    for name, run in (("tcpd", _tcpd), ("nab", _nab)):
        path = options.data / name / "score.py"
        if path.exists():
            run(_scorer(path))
        else:
            print(f"{name}: skipped, no {path}; pass --data FOLDER")
    return 0


def _scorer(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"scorer_{path.parent.name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _tcpd(scorer: Any) -> None:
    print("| TCPD, baseline of | F1 quality control 1-5 | covering | F1 nile |\n|---|---:|---:|---:|")
    for baseline in (10, 15, 20):
        config = ChangeConfig(warmup=0, baseline=baseline, refractory=5, min_relative=0.0)

        def detect(x: NDArray[np.float64], config: ChangeConfig = config) -> list[int]:
            first = x[: config.baseline]
            return [int(change.onset) for _, change in _changes(x, first, config) if change.significant]

        rows = scorer.evaluate(detect)
        charts = [row for name, row in rows.items() if name.startswith("quality_control")]
        f1, covering = (statistics.mean(row[key] for row in charts) for key in ("f1", "cover"))
        print(f"| {baseline} samples | {f1:.3f} | {covering:.3f} | {rows['nile']['f1']:.3f} |")


def _nab(scorer: Any) -> None:
    config = ChangeConfig(warmup=0, min_relative=0.0)
    scores = {name: _anomaly_scores(x, config) for name, (_, x) in scorer.files().items()}
    print("\n| NAB profile | score |\n|---|---:|")
    for profile, (score, _) in scorer.score(scores).items():
        print(f"| {profile} | {score:.1f} |")


def _anomaly_scores(x: NDArray[np.float64], config: ChangeConfig) -> NDArray[np.float64]:
    """Size of each significant change at the row that raised it, 50 sigmas = 1; zero elsewhere."""
    scores = np.zeros(len(x))
    for row, change in _changes(x, x[: min(int(0.15 * len(x)), 750)], config):
        if change.significant:
            scores[row] = min(abs(change.sigmas), 50.0) / 50.0
    return scores


def _changes(
    x: NDArray[np.float64], first: NDArray[np.float64], config: ChangeConfig
) -> list[tuple[int, Change]]:
    """(row, change) of every change accepted in x."""
    floor = max(FLOOR_SHARE * float(np.std(first)), 1e-9)
    bank = ChangeDetectorBank([Scale("identity", floor)], config=config)
    return [(row, change) for row, value in enumerate(x) for change in bank.update(float(row), [value])]
