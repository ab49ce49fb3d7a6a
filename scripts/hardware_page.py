"""Write docs/hardware-rules.md from the tables of the rules.

PYTHONPATH=. python scripts/hardware_page.py
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from alerts.kinds import kind_of
from alerts.stated_severity import milder
from slowrank.telemetry.hardware.xids import XIDS, xid_of
from slowrank.telemetry.records import Severity
from streams.node.rules.counter_rules import (
    GPU_COUNTS,
    HOST_COUNTS,
    NIC_COUNTS,
    CountRule,
    StateRule,
    Symptom,
)
from streams.node.rules.event_tables import EVENT_RULES, REPEAT_OFFENDER, UNKNOWN_XID, EventRule
from streams.node.rules.state_rules import GPU_STATES, NIC_STATES, NODE_STATES

PAGE = Path(__file__).resolve().parents[1] / "docs/hardware-rules.md"

HEAD = """\
# Hardware rules

The rules that turn error events, counters and states of the hardware into findings. A rule is switched on and
off by its name, see [tuning](operations.md#tuning-detectors); rows with the same name are switched together.
Where a counter has several rows, the `detector` of a finding has the limit and the window of the rule behind
the name: `counter.nic.port.link_downed_total.2_in_300s`.
This page is generated from the tables in `streams/node/rules/counter_rules.py` and
`streams/node/rules/state_rules.py`: `PYTHONPATH=. python scripts/hardware_page.py`.

* **Trigger**: on one GPU, port or host. `event`: this many faults (lines within 5 s of each other are one
  fault; fewer faults are `info`). `counter`: a rise of this much or more. `state`: holds for this long.
* **Severity** and **kind**: of a finding without any other evidence. The severity rises when a job is slowed.
  `congestion` is not a finding and blames no node: it supports the finding about a job that its network
  slows.
* **Opens**: whether the rule opens a finding by itself (`alone`), or only together with evidence of another
  family at the same place within a minute (`together`); until then the finding is `suspected`, and it expires
  after ten minutes. What lowers the clocks of a GPU is one family: the states and counters of
  throttling, a low clock, and the changes (`change.gpu.…`) of its clock, power, temperature and tensor
  activity. Together they open nothing without evidence of another family, such as step times. The counters,
  states and changes of ports are one family too.
* **Action**: the default of the kind. XID 154, and faults reported with it, use the action in the driver's
  message: reset, reboot, or drain and reset.
* **Source**: of the trigger. `slowrank`: our own choice. `after X (…)`: X uses the value in brackets. For the
  NVIDIA XID catalogue the brackets hold NVIDIA's immediate action and, after `/`, the one for investigation.

Kernel messages with a severity have one rule per level: `nonfatal` and `fatal`, `corrected`, and `driver` for
hung tasks of the NVIDIA driver or of a network file system. A rule without a level covers all other messages.
Event evidence about a GPU ends when its driver requires no recovery any more (XID 154 to `None`, or NVML);
event evidence about a node and its devices ends when the node reboots. Kinds with `CONTACT_SUPPORT` or
`HARDWARE_INSPECTION` stay open.

"""

COLUMNS = ("rule", "trigger", "severity", "kind", "action", "opens", "source")

UNITS = ((3600.0, "h"), (60.0, "min"))


def page() -> str:
    """Return the page."""
    lines = (_line(COLUMNS), _line(["---"] * len(COLUMNS)), *(_line(row) for row in rows()))
    return f"{HEAD}{''.join(lines)}\n{_tail()}"


def rows() -> Iterator[tuple[str, ...]]:
    """Yield the cells of every rule, in the order of the tables."""
    for code, event in EVENT_RULES.items():
        if event is not None:
            yield _row(f"`event.{code}`", _event(event, code), event.symptom, _source(event, code))
            if event.first is not None:
                yield _row(f"`event.{code}`", "once", event.first, event.source)
    yield _row("any other XID", _event(UNKNOWN_XID), UNKNOWN_XID.symptom, UNKNOWN_XID.source)
    yield _row("fatal XIDs repeated", _repeated(), REPEAT_OFFENDER.symptom, REPEAT_OFFENDER.source)
    for count in (*GPU_COUNTS, *NIC_COUNTS, *HOST_COUNTS):
        yield _row(f"`counter.{count.metric}`", _count(count), count.symptom, count.source)
    for state in (*GPU_STATES, *NIC_STATES, *NODE_STATES):
        yield _row(f"`state.{state.name}`", _state(state), state.symptom, state.source)


def _row(name: str, trigger: str, symptom: Symptom, source: str) -> tuple[str, ...]:
    action = kind_of(symptom.kind).action
    return (name, trigger, severity_of(symptom), f"`{symptom.kind}`", f"`{action}`", opens(symptom), source)


def severity_of(symptom: Symptom) -> Severity:
    """Return the severity of a finding that has no other evidence."""
    return milder(symptom.kind, [symptom.severity])


def opens(symptom: Symptom) -> str:
    """Return when the symptom alone, without any other evidence, opens a finding."""
    if kind_of(symptom.kind).reported_as == "evidence":
        return "never"
    return "alone" if symptom.overwhelming or kind_of(symptom.kind).opens_alone else "together"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _tail() -> str:
    never = ", ".join(f"`{code}`" for code, rule in EVENT_RULES.items() if rule is None)
    return f"Never evidence by themselves: {never}.\n"


def _source(rule: EventRule, code: str) -> str:
    row = XIDS.get(xid_of(code) or 0)
    return f"{rule.source} ({row.bucket})" if row is not None and row.bucket else rule.source


def _event(rule: EventRule, code: str = "") -> str:
    times = "once" if rule.faults == 1 else f"{rule.faults} within {_span(rule.window)}"
    times = f"{times}, and on no other GPU of the node" if rule.shared else times
    row = XIDS.get(xid_of(code) or 0)
    return times if row is None else f"{row.meaning}: {times}"


def _repeated() -> str:
    rule = REPEAT_OFFENDER
    fatal = (code for code, event in EVENT_RULES.items() if event is not None and event.fatal)
    codes = ", ".join(code.removeprefix("xid.") for code in fatal)
    return f"{rule.faults} of {codes} within {_span(rule.window)}, each after {_span(rule.burst)} without"


def _count(rule: CountRule) -> str:
    in_seconds = rule.metric.endswith("_nanoseconds_total")
    rise = f"{rule.count / 1e9:g} s" if in_seconds else f"{rule.count:g}"
    text = f"{rise} within {_span(rule.window)}"
    if rule.count_of is not None:
        text += "; 0.06 for each lane and GT/s of its link where that is reported"
    if rule.apart is not None:
        working = " that work" if rule.metric.startswith("gpu.") else ""
        text += f", and {rule.apart:g} times the median of its siblings{working}"
    return text if rule.usual is None else f"{text}, and beyond chance (p < 1e-6)"


def _state(rule: StateRule) -> str:
    return f"{rule.when}, for {_span(rule.debounce.hold)}" if rule.debounce.hold else rule.when


def _span(seconds: float) -> str:
    for unit, name in UNITS:
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"


if __name__ == "__main__":
    PAGE.write_text(page())
