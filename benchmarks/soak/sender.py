"""Sends the records of a plan over one connection, faster than they happened."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from itertools import chain

from benchmarks.soak.plan import Plan
from slowrank.telemetry import Record
from streams.runtime.kafka.record_producer import RecordProducer

# Of the clock. Chosen: five times the wait for a full batch, so that a slice is acknowledged before the next.
SLICE_SECONDS = 0.25


def slices(plan: Plan, speed: float) -> Iterator[tuple[float, list[Record]]]:
    """Yield what is due in each slice of the clock: the seconds since the beginning, and the records."""
    due, held = SLICE_SECONDS, list[Record]()
    for record in plan.records():
        while record.ts - plan.start >= due * speed:
            yield due, held
            due, held = due + SLICE_SECONDS, []
        held.append(record)
    yield due, held


def send(plan: Plan, speed: float, bootstrap: str) -> tuple[int, float]:
    """Send all records in their order, and print the Unix time at the beginning.

    Returns how many there were, and by how many seconds of the clock a slice was late at most.
    """
    producer, batches = RecordProducer(bootstrap), slices(plan, speed)
    # Making the records that all others are copies of takes seconds.
    first = next(batches)
    began, records, late = time.time(), 0, 0.0
    print(began, flush=True)
    try:
        for due, held in chain([first], batches):
            time.sleep(max(0.0, began + due - time.time()))
            late = max(late, time.time() - began - due)
            records += producer.send(held)
    finally:
        producer.close()
    return records, late


def main(argv: list[str]) -> int:
    """Send the plan ``argv[0]``, as JSON, at the speed ``argv[1]`` to the brokers ``argv[2]``, and report."""
    records, late = send(Plan(**json.loads(argv[0])), float(argv[1]), argv[2])
    print(json.dumps({"records": records, "late": round(late, 2)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
