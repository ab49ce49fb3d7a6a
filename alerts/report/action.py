"""What a person should do about a finding. Commands are printed to be copied; slowrank never runs one."""

import shlex

from alerts.finding import Action, Advice, Decision
from alerts.kinds import kind_of
from alerts.report.advice import reason
from alerts.report.title import place
from slowrank.telemetry import Subject

_DRAINABLE = ("gpu", "node", "rank", "group", "nic")
_NEXT: dict[Decision, str] = {
    "wait": "Wait for now.",
    "rebalance": "Give {place} less work where the job can.",
    "evict": "Drain {place} and restart from the last checkpoint on a spare.",
}
_NEEDS_THE_NODE_EMPTY = ("DRAIN_NODE", "REBOOT_NODE", "HARDWARE_INSPECTION", "REPLACE_CABLE", "RESET_GPU")


def action(
    kind: str,
    subject: Subject,
    *,
    hypothesis: str,
    finding_id: str,
    advice: Advice | None = None,
    where: str | None = None,
) -> Action:
    """Return the next step for the likeliest cause; what holds a whole job back is weighed by ``advice``.

    ``where`` names what to look at, if that is not all of the subject.
    """
    where = where or place(subject)
    own, likeliest = kind_of(kind), kind_of(hypothesis)
    # A cause that only has to be watched does not replace what the kind asks for.
    watched = likeliest.action == "WATCH" and own.action != "WATCH"
    rule = own if own.own_action or watched else likeliest
    text = rule.text.format(place=where)
    weighed = None if own.own_action else advice
    evicts = weighed is not None and weighed.decision == "evict"
    node = subject.node if subject.type in _DRAINABLE else None
    code = "DRAIN_NODE" if node and evicts else rule.action
    commands: tuple[str, ...] = ()
    if node and code in _NEEDS_THE_NODE_EMPTY:
        commands = _drain(node, f"slowrank {finding_id[:12]} {hypothesis}")
    if weighed is not None:
        # Without it the commands would contradict the advice not to restart the job now.
        later = f" Drain {node} for that once its job can spare it." if commands and not evicts else ""
        text = f"{_NEXT[weighed.decision].format(place=where)} {text}{later} {reason(weighed)}"
    return Action(code, text, commands, advice=advice)


def watch(subject: Subject) -> Action:
    """Return the next step for a fault that has to repeat before it is acted on."""
    return Action("WATCH", f"Watch {place(subject)}: act when it happens again.")


def check_uplinks(subject: Subject) -> Action:
    """Return the next step where a place fell silent at once and no job is seen to have stopped."""
    if subject.type == "site":
        ways = (
            f"Check how telemetry leaves {place(subject)} (network, brokers), then its uplinks and its power"
        )
        return Action(
            "CHECK_NETWORK", f"{ways}: until a job is seen to stop, silence does not show which it is."
        )
    state = "its nodes send no telemetry, but no job is known to stand still"
    return Action("CHECK_NETWORK", f"Check the uplinks of {place(subject)}, then its power: {state}.")


def _drain(node: str, reason: str) -> tuple[str, ...]:
    name = shlex.quote(node)
    return (
        f"scontrol update nodename={name} state=drain reason={shlex.quote(reason)}",
        f"kubectl cordon {name}",
    )
