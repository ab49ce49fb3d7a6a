"""Detection quality on the simulator, beside public rules on the same streams (`python -m benchmarks
quality`).

An interrupted run can be continued: every outcome is appended to a file and not simulated again.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from benchmarks.quality.baselines.tune import tuned
from benchmarks.quality.columns import BARE, COLUMNS
from benchmarks.quality.run import Outcome, run
from benchmarks.quality.scenarios.parts import PARTS
from benchmarks.quality.scenarios.scenario import REPORT_SEEDS, TUNING_SEEDS
from benchmarks.quality.scoring.report import lines, summary

SEEDS = 30


def read(path: Path, parts: Iterable[str], *, without: tuple[str, ...] = ()) -> list[Outcome]:
    """Return the outcomes of those parts in a results file, none if there is no file.

    An incomplete last line, of a run that was stopped, is left out, and so are runs in which other columns
    than ``without`` were missing.
    """
    if not path.exists():
        return []
    whole = path.read_bytes().rpartition(b"\n")[0]
    outcomes = [msgspec.json.decode(line, type=Outcome) for line in whole.splitlines()]
    return [outcome for outcome in outcomes if outcome.part in parts and outcome.without == without]


def line(outcome: Outcome) -> bytes:
    """Return the line of an outcome in a results file."""
    return msgspec.json.encode(outcome) + b"\n"


def missing(done: Iterable[Outcome], part: str, seeds: Iterable[int]) -> Iterator[int]:
    """Yield the seeds of a part that still have to be run."""
    present = {outcome.seed for outcome in done if outcome.part == part}
    yield from (seed for seed in seeds if seed not in present)


def extend(path: Path, parts: list[str], seeds: list[int], *, without: tuple[str, ...] = ()) -> list[Outcome]:
    """Run the seeds missing in the file, seed by seed through all parts; return all outcomes of them.

    The columns ``without`` are missing in every sample.
    """
    done = read(path, parts, without=without)
    if path.exists():
        # In place: an interruption while the file is rewritten would lose every outcome.
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    todo = sorted((seed, part) for part in parts for seed in missing(done, part, seeds))
    for seed, part in todo:
        # All outcomes of a seed in one write: an incomplete seed must not count as done.
        fresh = [run(replace(scenario, without=without)) for scenario in PARTS[part](seed)]
        with path.open("ab") as file:
            file.write(b"".join(map(line, fresh)))
        done += fresh
        print(f"{part} {seed}", file=sys.stderr, flush=True)
    return [outcome for outcome in done if outcome.seed in set(seeds)]


def merged(paths: Iterable[Path], parts: list[str], *, without: tuple[str, ...] = ()) -> list[Outcome]:
    """Return the outcomes of several results files; of a seed and part in several files the first."""
    held: dict[tuple[str, int], list[Outcome]] = {}
    for path in paths:
        found: dict[tuple[str, int], list[Outcome]] = {}
        for outcome in read(path, parts, without=without):
            found.setdefault((outcome.part, outcome.seed), []).append(outcome)
        held = found | held
    return [outcome for _, outcomes in sorted(held.items()) for outcome in outcomes]


def main(argv: list[str]) -> int:
    """Run or continue the evaluation and print its tables; 1 when a stage raised on a record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks quality", description=__doc__)
    parser.add_argument("--part", action="append", choices=PARTS, help="may be repeated; default: all")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many, from --first on")
    parser.add_argument("--first", type=int, default=REPORT_SEEDS.start, help="first seed")
    parser.add_argument("--results", type=Path, default=Path("quality.ndjson"), help="outcomes, appended to")
    parser.add_argument("--merge", type=Path, nargs="+", help="run nothing, report these results")
    parser.add_argument(
        "--without", action="append", choices=COLUMNS, metavar="COLUMN", default=[], help="may be repeated"
    )
    parser.add_argument("--bare", action="store_true", help=f"--without {' --without '.join(BARE)}")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--tune", action="store_true", help="tune the baselines on tuning seeds")
    options = parser.parse_args(argv)
    if options.tune:
        print("\n".join(tuned([*TUNING_SEEDS][: options.seeds])))
        return 0
    parts = options.part or [*PARTS]
    lacking = tuple(sorted({*options.without, *(BARE if options.bare else ())}))
    if options.merge:
        if absent := [str(path) for path in options.merge if not path.exists()]:
            parser.error(f"--merge: no such file: {', '.join(absent)}")
        outcomes = merged(options.merge, parts, without=lacking)
    else:
        seeds = [*range(options.first, options.first + options.seeds)]
        outcomes = extend(options.results, parts, seeds, without=lacking)
    print("\n".join(lines(outcomes)))
    if options.json:
        options.json.write_text(json.dumps(summary(outcomes), indent=1) + "\n")
    return int(any(outcome.set_aside for outcome in outcomes))
