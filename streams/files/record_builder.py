"""Builds records in order of event time from the rows of files, independent of how rows are split into files.

Step rows of one node and one second make a record, and so do the sample rows of one round of readings of a
node.
"""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from slowrank.telemetry import UNKNOWN_NODE, BadRecord, JobSteps, NodeEvent, NodeSample, Record
from slowrank.telemetry.checks import (
    MAX_RANKS,
    MAX_STEP_ROWS,
    STEP_PARTS,
    check_event,
    check_step_part,
    check_steps,
)
from slowrank.telemetry.names import COORDS, SUBJECT_NUMBERS, SUBJECT_TEXTS, unknown_metric
from slowrank.telemetry.rows.json_rows import AMOUNTS, Assembler, open_step_record, whole_numbers
from slowrank.telemetry.rows.rounds import labels_of, rounds
from slowrank.telemetry.rows.sample_rows import fault
from slowrank.telemetry.schema import (
    CURRENT_STEP_SCHEMA,
    MISSING,
    MISSING_INT,
    STEP_SCHEMAS,
    StepSchema,
    step_schema,
)
from streams.columns import Array, pack_arrays
from streams.files.data_quality import StepColumns, doubts, ranks_in_words
from streams.files.job_levels import level_rises
from streams.files.node_clocks import Node, clocks_ahead, in_cluster_time
from streams.files.readers import REQUIRED, FileProblem, Row, chain, kind_of, one_value_a_row
from streams.files.unknown_fields import UnknownFields
from streams.files.value_parsing import integer_of, lacks_zone, number_of, text_of, time_of

_STEP = STEP_SCHEMAS[CURRENT_STEP_SCHEMA].rows
_KEYS = ("step", "rank", "local_rank", "gpu_index", *COORDS)
# Missing is the smallest integer of a type; its complement is the largest.
_LARGEST = {c.name: ~MISSING[c.dtype] for c in _STEP.columns if c.dtype in MISSING}
_SECONDS = tuple(c.name for c in _STEP.columns if c.dtype == "<f4")

# Rows over 1, and their share, from which on a metric is taken for a percentage. Chosen: single wrong values
# say nothing of the others.
_PERCENTAGES, _PERCENTAGES_SHARE = 10, 0.01

# Examples of rows that are set aside for one reason. Chosen: those of all reasons fit on a screen.
MOST_EXAMPLES = 4

# Order of records with equal times, independent of the order in the files.
_ORDER = {NodeSample: 0, NodeEvent: 1, JobSteps: 2}


@dataclass(slots=True)
class Read:
    """The records in order, how many rows they have, and the counts of unusable rows by reason.

    ``doubts``: (job, reason why its steps may give no finding, or what they show that is none).
    ``unknown``: fields that are ignored.
    ``without_zone``: rows whose time of day has no offset from UTC. ``ahead``: seconds by which the times of
    nodes were moved back, because their clocks are off. ``no_rows``: how many of the unusable rows are no
    objects at all.
    """

    records: list[Record] = field(default_factory=list)
    rows: int = 0
    doubts: list[tuple[str, str]] = field(default_factory=list)
    unknown: UnknownFields = field(default_factory=UnknownFields)
    without_zone: int = 0
    ahead: dict[Node, float] = field(default_factory=dict)
    bad: Counter[str] = field(default_factory=Counter)
    no_rows: int = 0
    examples: list[str] = field(default_factory=list)
    _mistakes: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def set_aside(self, where: str, why: BadRecord, rows: int = 1) -> None:
        """Count unusable rows, and keep the first few of each reason that differ as examples."""
        self.bad[why.reason] += rows
        mistakes = self._mistakes[why.reason]
        if why.detail not in mistakes and len(mistakes) < MOST_EXAMPLES:
            mistakes.add(why.detail)
            self.examples.append(f"{where}: {why.detail}")

    def nodes_of_jobs(self) -> list[set[str]]:
        """Return the names of the nodes that took steps of each job."""
        jobs: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        for record in self.records:
            if isinstance(record, JobSteps):
                jobs[record.cluster, record.job_id].add(record.node)
        return list(jobs.values())


def read_records(paths: Iterable[Path]) -> Read:
    """Return the records of all files together, sorted by event time. Raises ``FileProblem``."""
    found = Read()
    steps, samples = _Steps(found.unknown), _Samples()
    numbers: Counter[str] = Counter()
    paths = list(paths)
    for path, number, row in chain(paths):
        try:
            if isinstance(row, BadRecord):
                raise row
            without_zone = lacks_zone(row.get("ts"))
            found.records += _take(row, steps, samples, numbers, found.unknown)
            found.rows += 1
            found.without_zone += without_zone
        except BadRecord as error:
            found.no_rows += error is row
            found.set_aside(f"{path.name}:{number}", error)
            if isinstance(row, dict):
                steps.note_lost(row)
    found.ahead = steps.clocks_ahead()
    for record in (*steps.records(found), *samples.records(found)):
        found.records.append(record)
    found.records = in_cluster_time(found.records, found.ahead)
    found.records.sort(key=_order)
    if not found.records:
        raise FileProblem(_nothing(paths, found))
    return found


def _take(
    row: Row, steps: "_Steps", samples: "_Samples", numbers: Counter[str], unknown: UnknownFields
) -> list[Record]:
    kind = kind_of(row)
    unknown.note(kind, row)
    missing = [name for name in REQUIRED[kind] if row.get(name) is None and name != "value"]
    if missing:
        wide = one_value_a_row(row) if kind == "sample" else ""
        absent = wide or f" {'They are' if len(missing) > 1 else 'It is'} missing, empty or NaN."
        raise BadRecord("undecodable", f"a {kind} row needs {', '.join(missing)}.{absent}")
    row["ts"] = time_of(row["ts"])
    if kind == "step":
        steps.add(row)
    elif kind == "sample":
        samples.add(row)
    elif kind == "open_step":
        return [open_step_record(row)]
    else:
        node = str(row["node"])
        numbers[node] += 1
        return [_event({"seq": numbers[node]} | row, unknown)]
    return []


class _Steps:
    """Step rows as columns."""

    def __init__(self, unknown: UnknownFields) -> None:
        self._unknown = unknown
        self._heads: dict[tuple[Any, ...], int] = {}
        self._group: list[int] = []
        self._ts: list[float] = []
        self._keys: list[list[int]] = []
        self._seconds: list[list[float]] = []
        self._nan_losses: Counter[str] = Counter()
        self._lost: defaultdict[str, Counter[int]] = defaultdict(Counter)

    def add(self, row: Row) -> None:
        coords = row.get("coords")
        if isinstance(coords, dict):
            self._unknown.note("coords", coords)
            row |= {k: v for k, v in coords.items() if k in COORDS}
        keys = [integer_of(row, name) for name in _KEYS]
        seconds = [number_of(row, name) for name in _SECONDS]
        if MISSING_INT in keys[:2]:
            raise BadRecord("bad_number", "step and rank must be whole numbers")
        if keys[0] < 0:
            raise BadRecord("bad_number", f"step {keys[0]} is below 0")
        if not 0 <= keys[1] < MAX_RANKS:
            raise BadRecord("bad_number", f"rank {keys[1]} is not 0 to {MAX_RANKS - 1}")
        for name, key in zip(_KEYS, keys, strict=True):
            if key > _LARGEST[name]:
                raise BadRecord("bad_number", f"{name} must be at most {_LARGEST[name]}")
        if not seconds[0] >= 0:
            raise BadRecord("bad_number", "step_seconds must be a finite number, at least 0")
        for name, part in zip(_SECONDS, seconds, strict=True):
            if name in STEP_PARTS:
                check_step_part(name, part, seconds[0])
        head = (
            text_of(row, "cluster", "default"),
            text_of(row, "job_id", "job"),
            integer_of(row, "attempt", 0),
            text_of(row, "node", UNKNOWN_NODE),
            integer_of(row, "world_size", 0),
            labels_of(row),
        )
        if head not in self._heads:
            # Raises on a bad name here, so that its line is reported.
            _steps_record(head, 0, row["ts"], step_schema(squares=False), b"")
        if row.get("loss") != row.get("loss"):
            self._nan_losses[head[1]] += 1
        self._group.append(self._heads.setdefault(head, len(self._heads)))
        self._ts.append(row["ts"])
        self._keys.append(keys)
        self._seconds.append(seconds)

    def note_lost(self, row: Row) -> None:
        """Count a row that was set aside, if it says which rank it is of."""
        try:
            rank = integer_of(row, "rank")
        except BadRecord:
            return
        if rank >= 0 and row.get("metric") is None:
            self._lost[text_of(row, "job_id", "job")][rank] += 1

    def _of_lost(self, jobs: Set[str]) -> Iterator[tuple[str, str]]:
        """Yield (job, what its rows lost as they were read)."""
        for job_id in sorted(jobs & self._lost.keys()):
            lost = self._lost[job_id]
            whose = ranks_in_words(sorted(lost))
            yield job_id, f"{lost.total()} rows of {whose} were set aside: it may seem that ranks are missing"
        for job_id, count in sorted(self._nan_losses.items()):
            how = "they count as without it; 1e300 says that it was no number"
            yield job_id, f"loss is NaN in {count} rows: {how}"

    def clocks_ahead(self) -> dict[Node, float]:
        """Return by how many seconds the clocks of nodes are ahead of their jobs', where they are off."""
        heads = list(self._heads)
        run = _numbered(head[:3] for head in heads)
        nodes, node = sorted(set(map(_node, heads))), _numbered(map(_node, heads))
        group = np.array(self._group, np.int64)
        steps = np.array([keys[0] for keys in self._keys], np.int64)
        found = clocks_ahead(run[group], node[group], steps, np.array(self._ts))
        return {nodes[number]: seconds for number, seconds in found.items()}

    def records(self, found: Read) -> Iterator[JobSteps]:
        if not self._ts:
            return
        heads, places = sorted(self._heads), np.empty(len(self._heads), np.int64)
        for place, head in enumerate(heads):
            # Groups are numbered by their heads and not by their first rows, so that the order of the files
            # does not matter.
            places[self._heads[head]] = place
        group = places[self._group]
        ts = np.array(self._ts) - np.array([found.ahead.get(_node(head), 0.0) for head in heads])[group]
        keys, seconds = np.array(self._keys, np.int64).T, np.array(self._seconds, np.float32).T
        second = np.floor(ts)
        order = np.lexsort((keys[1], keys[0], ts, group, second))
        group, ts, second = group[order], ts[order], second[order]
        named = zip((*_KEYS, *_SECONDS), (*keys[:, order], *seconds[:, order]), strict=True)
        held = {"ts": ts, **dict(named)}
        held["attempt"] = np.array([head[2] for head in heads])[group]
        found.doubts += _doubts(heads, group, held)
        found.doubts += self._of_lost({head[1] for head in heads})
        cuts = np.flatnonzero(np.diff(group) | np.diff(second).astype(bool)) + 1
        for number, (a, b) in enumerate(_pieces([0, *cuts.tolist(), len(ts)])):
            piece = {name: values[a:b] for name, values in held.items()}
            schema = step_schema(squares=not np.isnan(piece["seq_len_sq_sum"]).all())
            data = pack_arrays(schema.rows, piece)
            try:
                yield _steps_record(heads[group[a]], number, float(ts[b - 1]), schema, data)
            except BadRecord as error:
                found.rows -= b - a
                found.set_aside("step rows", error, b - a)


def _doubts(
    heads: Sequence[tuple[Any, ...]], group: Array, held: Mapping[str, Array]
) -> Iterator[tuple[str, str]]:
    """Yield (job, remark) from ``doubts`` and ``level_rises`` of each job; ``heads`` is by group."""
    number = {job: i for i, job in enumerate(sorted({head[:2] for head in heads}))}
    of_row = np.array([number[head[:2]] for head in heads])[group]
    order = of_row.argsort(kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(of_row[order])) + 1)
    names = sorted({head[3] for head in heads} - {UNKNOWN_NODE})
    place = {name: i for i, name in enumerate(names)}
    held = {**held, "node": np.array([place.get(head[3], -1) for head in heads])[group]}
    for (_, job_id), rows in zip(number, parts, strict=True):
        columns = StepColumns(**{f.name: held[f.name][rows] for f in fields(StepColumns)})
        yield from ((job_id, remark) for remark in (*doubts(columns, names), *level_rises(columns)))


class _Samples:
    """Sample rows by node and time stamp, and then by node and round."""

    def __init__(self) -> None:
        self._ticks: dict[tuple[float, str, str], list[Row]] = {}
        # Rows of each ratio that may be right, and those that are percentages.
        self._ratios: Counter[str] = Counter()
        self._percentages: Counter[str] = Counter()

    def add(self, row: Row) -> None:
        if unknown := unknown_metric(row["metric"]):
            raise BadRecord("unknown_name", str(unknown))
        row["value"] = number_of(row, "value")
        if found := fault(row):
            self._percentages[row["metric"]] += row["metric"].endswith("_ratio") and row["value"] > 1
            raise found[1]
        self._ratios[row["metric"]] += row["metric"].endswith("_ratio")
        key = (row["ts"], str(row.get("cluster") or "default"), str(row["node"]))
        self._ticks.setdefault(key, []).append(row)

    def records(self, found: Read) -> Iterator[Record]:
        self._set_percentages_aside(found)
        numbers: Counter[tuple[str, str]] = Counter()
        for (ts, cluster, node), rows in self._rounds():
            numbers[cluster, node] += 1
            shared = {"kind": "sample", "ts": ts, "seq": rows[0].get("seq", numbers[cluster, node])}
            assembler = Assembler()
            try:
                for row in rows:
                    assembler.add({**row, **shared})
                yield from assembler.flush()
            except BadRecord as error:
                found.rows -= len(rows)
                found.set_aside(f"samples of {node!r:.40} at {ts}", error, len(rows))

    def _rounds(self) -> Iterator[tuple[tuple[float, str, str], list[Row]]]:
        """Yield the rows of each round, in order of cluster, node and time, with the time of the last."""
        for _, group in itertools.groupby(sorted(self._ticks, key=_node_first), key=lambda key: key[1:]):
            keys = list(group)
            ticks = [self._ticks[key] for key in keys]
            for together in rounds([key[0] for key in keys], ticks):
                yield keys[together[-1]], [row for k in together for row in ticks[k]]

    def _set_percentages_aside(self, found: Read) -> None:
        """Set aside what is left of metrics that are percentages in many rows: 1 of them is no ratio of 1."""
        for metric, over in sorted(self._percentages.items()):
            left = self._ratios[metric]
            if left and over >= _PERCENTAGES and over >= _PERCENTAGES_SHARE * (over + left):
                detail = (
                    f"{metric} is a percentage in {over:,} rows, and so in the {left:,} others, although "
                    "these are from 0 to 1; all are to be divided by 100"
                )
                found.rows -= left
                found.bad["bad_number"] += left
                # First: the examples of single rows may be as many as are shown.
                found.examples.insert(0, detail)
                for key, rows in self._ticks.items():
                    self._ticks[key] = [row for row in rows if row["metric"] != metric]
        self._ticks = {key: rows for key, rows in self._ticks.items() if rows}


def _node_first(key: tuple[float, str, str]) -> tuple[str, str, float]:
    ts, cluster, node = key
    return cluster, node, ts


def _pieces(cuts: list[int]) -> Iterator[tuple[int, int]]:
    for start, end in itertools.pairwise(cuts):
        for a in range(start, end, MAX_STEP_ROWS):
            yield a, min(a + MAX_STEP_ROWS, end)


def _steps_record(head: tuple[Any, ...], number: int, ts: float, schema: StepSchema, data: bytes) -> JobSteps:
    cluster, job_id, attempt, node, world_size, labels = head
    record = JobSteps(
        schema=schema.id,
        cluster=cluster,
        job_id=job_id,
        attempt=attempt,
        node=node,
        boot_id="file",
        seq=number,
        ts=ts,
        world_size=world_size,
        labels=dict(labels),
        row_bytes=schema.row_bytes,
        rows=data,
    )
    return check_steps(record)


def _event(row: Row, unknown: UnknownFields) -> NodeEvent:
    fields = {k: v for k, v in row.items() if k in NodeEvent.__struct_fields__ and v is not None}
    subject = fields.get("subject", {})
    if isinstance(subject, str):
        try:
            subject = msgspec.json.decode(subject)
        except msgspec.DecodeError as error:
            raise BadRecord("undecodable", "subject is no JSON object") from error
    if isinstance(subject, dict):
        unknown.note("subject", subject)
        fields["subject"] = _beside_subject(row) | whole_numbers(subject)
    try:
        return check_event(msgspec.convert({"cluster": "default", **fields}, NodeEvent, strict=False))
    except msgspec.ValidationError as error:
        raise BadRecord("undecodable", f"event: {error}") from error


def _beside_subject(row: Row) -> dict[str, str | int]:
    """Return the fields of the subject that stand beside it, as they do where rows are flat."""
    numbers = {name: _whole(row, name) for name in SUBJECT_NUMBERS if row.get(name) is not None}
    # ``kind`` is that of the row.
    texts = {name: text_of(row, name, "") for name in SUBJECT_TEXTS if row.get(name) and name != "kind"}
    return {name: number for name, number in numbers.items() if number != MISSING_INT} | texts


def _whole(row: Row, name: str) -> int:
    if name not in AMOUNTS:
        return integer_of(row, name)
    amount = number_of(row, name)
    return MISSING_INT if math.isnan(amount) else round(amount)


def _node(head: tuple[Any, ...]) -> Node:
    return head[0], head[3]


def _numbered(keys: Iterable[tuple[Any, ...]]) -> npt.NDArray[np.int64]:
    """Return the place of each key among all in ascending order."""
    listed = list(keys)
    place = {key: i for i, key in enumerate(sorted(set(listed)))}
    return np.array([place[key] for key in listed], np.int64)


def _order(record: Record) -> tuple[Any, ...]:
    job = record.job_id if isinstance(record, JobSteps) else ""
    return record.ts, _ORDER[type(record)], record.cluster, job or "", record.node, record.seq


def _nothing(paths: list[Path], found: Read) -> str:
    names = ", ".join(p.name for p in paths)
    if not found.bad:
        return f"{names}: no rows. Give NDJSON, CSV or Parquet with step, sample or event rows."
    reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(found.bad.items()))
    problem = f"{names}: no usable row ({reasons}). First: {found.examples[0]}"
    if found.no_rows < found.bad.total():
        return problem
    return (
        f"{problem}\nNDJSON is one object a line (jq -c . FILE); CSV is known by .csv in the name, with tabs "
        "by .tsv, Parquet by .parquet."
    )
