"""What a person should do about a finding. Commands are printed to be copied; slowrank never runs one."""

import shlex

from alerts.finding import Action
from alerts.kinds import rule_of
from alerts.title import place
from slowrank.telemetry import Subject

_DRAINABLE = ("gpu", "node", "rank", "nic")
_NEEDS_THE_NODE_EMPTY = ("DRAIN_NODE", "REBOOT_NODE", "HARDWARE_INSPECTION", "REPLACE_CABLE", "RESET_GPU")


def action(kind: str, subject: Subject, *, hypothesis: str, gates_job: bool, finding_id: str) -> Action:
    """Return the next step for the likeliest cause; one that holds a whole job back is drained."""
    rule = rule_of(kind if kind == "straggler.intermittent" else hypothesis)
    if rule.action == "WATCH" and rule_of(kind).action != "WATCH":
        rule = rule_of(kind)
    advice = rule.text.format(place=place(subject))
    node = subject.node if subject.type in _DRAINABLE else None
    if node is None:
        return Action(rule.action, advice)
    commands = _drain(node, f"slowrank {finding_id[:12]} {hypothesis}")
    if gates_job and kind != "straggler.intermittent":
        text = f"Drain {node} and restart from the last checkpoint on a spare. {advice}"
        return Action("DRAIN_NODE", text, commands)
    return Action(rule.action, advice, commands if rule.action in _NEEDS_THE_NODE_EMPTY else ())


def _drain(node: str, reason: str) -> tuple[str, ...]:
    name = shlex.quote(node)
    return (
        f"scontrol update nodename={name} state=drain reason={shlex.quote(reason)}",
        f"kubectl cordon {name}",
    )
