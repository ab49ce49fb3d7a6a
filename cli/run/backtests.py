"""Runs the backtests that are posted to the API, one after the other, each in a process of its own.

A recording that needs too much time or memory, or on which a detector fails, so ends alone.
"""

import gzip
import heapq
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from psycopg_pool import ConnectionPool

from slowrank.telemetry.rows.formats import is_csv
from store.error_classes import UNAVAILABLE
from store.findings import backtests

log = logging.getLogger(__name__)

# Limit on one recording. Chosen: 20 MiB take the detectors some ten seconds.
LONGEST_SECONDS = 600.0

# A recording whose runner is gone is shown as running, and waits for the next one, for so long; the lease is
# renewed meanwhile. Chosen: three renewals, as the database may be away for some seconds.
LEASE_SECONDS = 30.0
_RENEW_SECONDS = 10.0
# How long a renewal waits for the database. Chosen: a fifth of the time to the next, which must not be late.
_RENEW_WAIT_SECONDS = 2.0
# Between two looks at the process (chosen).
_POLL_SECONDS = 0.2

# Between two looks at the table. Chosen: people wait for the result.
LOOK_SECONDS = 2.0
# Pause while the database cannot be used.
AWAY_SECONDS = 10.0
# Pause after an unexpected error. Chosen: its traceback is logged as often.
ERROR_SECONDS = 60.0
# Findings in a result. Chosen: more than anyone reads; the number of all is given besides.
MAX_FINDINGS = 500
# Lines of the command's other output in a result. Chosen: more than anyone reads.
MAX_NOTES = 50

_SUMMARY = re.compile(r"\d+ findings?; (\d+) rows read")

# Chosen: half way to the least priority, so that live telemetry comes first and a result still comes.
_NICE = 10

# How a process ended: by itself, killed after ``LONGEST_SECONDS``, or killed as it is not to go on.
_End = Literal["ended", "late", "stopped"]

_COMMAND = (sys.executable, "-c", "from cli import main; main()", "backtest")


class Runner:
    """Takes recordings from the table until it is stopped."""

    def __init__(self, pool: ConnectionPool[Any], command: Sequence[str] = _COMMAND) -> None:
        self._pool = pool
        self._command = command
        self._stop = threading.Event()

    def stop(self) -> None:
        """Stop; a recording under way waits for the next runner."""
        self._stop.set()

    def run(self) -> None:
        """Run until stopped; survives outages of the database."""
        while not self._stop.is_set():
            try:
                if self.run_one():
                    continue
            except UNAVAILABLE as error:
                log.warning("backtests wait for the database: %s", error)
                self._stop.wait(AWAY_SECONDS)
            except Exception:
                # A full disk: what was leased is tried again.
                log.exception("backtests do not run, trying again in %g s", ERROR_SECONDS)
                self._stop.wait(ERROR_SECONDS)
            self._stop.wait(LOOK_SECONDS)

    def run_one(self) -> bool:
        """Run the oldest recording that waits; return whether there was one."""
        with self._pool.connection() as conn:
            leased = backtests.lease(conn, datetime.now(UTC), LEASE_SECONDS)
        if leased is None:
            return False
        result, error = self._run(gzip.decompress(leased.recording), partial(self._renew, leased))
        with self._pool.connection() as conn:
            if result is None and not error:
                backtests.release(conn, leased)
            else:
                backtests.finish(conn, leased, datetime.now(UTC), result=result, error=error)
        return True

    def _renew(self, held: backtests.Lease) -> bool:
        """Renew a lease; return False where another runner has taken the recording."""
        try:
            with self._pool.connection(_RENEW_WAIT_SECONDS) as conn:
                return backtests.renew(conn, held, datetime.now(UTC), LEASE_SECONDS)
        except UNAVAILABLE as error:
            log.warning("the database is unavailable, a backtest may be run again: %s", error)
            return True

    def _run(self, rows: bytes, renew: Callable[[], bool]) -> tuple[dict[str, Any] | None, str]:
        """Return what was found, or why nothing can be; neither where it is stopped or its lease is lost."""
        with tempfile.TemporaryDirectory(prefix="slowrank-backtest-") as folder:
            # The command knows a table by its name.
            recorded = Path(folder) / ("recording.csv" if is_csv(rows) else "recording.ndjson")
            found = Path(folder) / "findings.ndjson"
            recorded.write_bytes(rows)
            errors = Path(folder) / "errors"
            with errors.open("wb") as output:
                process = subprocess.Popen(
                    [*self._command, str(recorded), "-o", str(found)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=output,
                )
                _yield_to_others(process.pid)
                end = self._wait(process, renew)
            if end != "ended":
                return None, "" if end == "stopped" else f"it took longer than {LONGEST_SECONDS:g} s"
            with errors.open(errors="replace") as lines:
                # The folder's name is of no use to whoever posted the recording.
                said = (line.rstrip("\n").replace(f"{recorded}", "the recording") for line in lines)
                if process.returncode != 0 or not found.exists():
                    last = deque(filter(str.strip, said), maxlen=1) or ["no output"]
                    return None, f"exit status {process.returncode}: {last[0]}"
                with found.open() as findings:
                    return result_of(findings, said), ""

    def _wait(self, process: subprocess.Popen[bytes], renew: Callable[[], bool]) -> _End:
        """Wait for the end of a process; kill it when it is too late, to be stopped or the lease is lost."""
        began = renewed = time.monotonic()
        held = True
        while held and (now := time.monotonic()) - began < LONGEST_SECONDS and not self._stop.is_set():
            if now - renewed >= _RENEW_SECONDS:
                held, renewed = renew(), now
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_SECONDS)
                return "ended"
        process.kill()
        process.wait()
        return "late" if held and not self._stop.is_set() else "stopped"


def result_of(lines: Iterable[str], said: Iterable[str]) -> dict[str, Any]:
    """Return the result of findings, one a line, and of what the command printed.

    Only what the result has is kept: a recording of 20 MiB may make more than 100,000 findings.
    """
    count, kinds, severities = 0, Counter[str](), Counter[str]()
    costliest: list[tuple[float, int, dict[str, Any]]] = []
    for count, line in enumerate(lines, start=1):
        one = json.loads(line)
        if one["status"] != "suspected":
            kinds[one["kind"]] += 1
            severities[one["severity"]] += 1
        # Of equal ones the first.
        heapq.heappush(costliest, (one.get("gpu_hours_lost") or 0.0, -count, one))
        if len(costliest) > MAX_FINDINGS:
            heapq.heappop(costliest)
    rows, notes = 0, list[str]()
    for line in said:
        if match := _SUMMARY.fullmatch(line):
            rows += int(match[1])
        elif line.strip() and len(notes) < MAX_NOTES:
            notes.append(line[:300])
    return {
        "rows": rows,
        "findings": count,
        "by_kind": dict(kinds),
        "by_severity": dict(severities),
        "notes": notes,
        "items": [one for *_, one in sorted(costliest, reverse=True)],
    }


@contextmanager
def running(pool: ConnectionPool[Any]) -> Iterator[None]:
    """Run backtests in the background while the block runs."""
    runner = Runner(pool)
    thread = threading.Thread(target=runner.run, name="backtests", daemon=True)
    thread.start()
    try:
        yield
    finally:
        runner.stop()
        thread.join(10)


def _yield_to_others(pid: int) -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, pid, _NICE)
    except OSError:
        # It has ended already.
        return
