"""What a person should do about a finding. Commands are printed to be copied; slowrank never runs one."""

import shlex
from collections.abc import Sequence
from dataclasses import replace

from alerts.finding import Action, Advice, Decision
from alerts.kinds import kind_of
from alerts.report.advice import reason
from alerts.report.title import place_in_text
from slowrank.telemetry import Subject

_DRAINABLE = ("gpu", "node", "rank", "group", "nic")

# What follows the action itself: the job goes on meanwhile.
_LATER: dict[Decision, str] = {
    "wait": "Do not restart its job for it yet.",
    "rebalance": "Until then give {place} less work where the job can.",
    "evict": "",
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
    pages: bool = False,
    again: bool = False,
) -> Action:
    """Return the next step for the likeliest cause; what holds a whole job back is weighed by ``advice``.

    First what is done first, then what may be done instead. ``where`` names what to look at, if that is not
    all of the subject; ``pages`` is that the finding does, ``again`` that the cause has come back: then
    what can be cured without a restart has its node drained.
    """
    where = where or place_in_text(subject)
    own, likeliest = kind_of(kind), kind_of(hypothesis)
    # A cause that only has to be watched does not replace what the kind asks for.
    watched = likeliest.action == "WATCH" and own.action != "WATCH"
    # Whether a machine should go or not, its loader is looked at first.
    stands = own.own_action and likeliest.action != "CHECK_DATA"
    rule = own if stands or watched else likeliest
    text = rule.text.format(place=where)
    weighed = None if own.own_action else advice
    evicts = weighed is not None and weighed.decision == "evict"
    node = subject.node if subject.type in _DRAINABLE else None
    code = "DRAIN_NODE" if node and evicts else rule.action
    step = Action(code, text, advice=advice)
    if evicts:
        then = f"{_drain(subject, where)} and restart its job from the last checkpoint on a spare."
        step = replace(step, text=f"{then} {text}")
    if node and code in _NEEDS_THE_NODE_EMPTY:
        step = replace(step, commands=drain((node,), finding_id, hypothesis))
    if rule.cure is not None and not again:
        step = replace(step, commands=_on_node(rule.cure, subject))
    elif step.commands and weighed is not None and not evicts:
        step = _drained(step, subject)
    elif pages or rule.cure is not None:
        step = paging(step, subject, finding_id=finding_id, why=hypothesis)
    if weighed is None:
        return step
    later = _LATER[weighed.decision].format(place=where)
    return replace(step, text=" ".join(part for part in (step.text, later, reason(weighed)) if part))


def paging(step: Action, subject: Subject, *, finding_id: str, why: str) -> Action:
    """Return the step of a finding that pages, with the drain of the machine that it names."""
    named = subject.node is not None or subject.rank is not None or subject.ranks is not None
    evicts = step.advice is not None and step.advice.decision == "evict"
    if subject.type not in _DRAINABLE or not named or step.commands:
        return step
    if subject.node:
        step = replace(step, commands=drain((subject.node,), finding_id, why))
    return step if evicts else _drained(step, subject)


def _drained(step: Action, subject: Subject) -> Action:
    """Return the step with the drain of its machine: before it, or after what may show another culprit."""
    drain_it = _drain(subject, place_in_text(subject))
    drains = f"{drain_it}: no other job starts there, and its own goes on until it ends."
    if step.code.startswith("CHECK_"):
        return replace(step, text=f"{step.text} If that shows nothing, {drains[0].lower()}{drains[1:]}")
    if step.code == "WATCH":
        # A drain does not stop the job, and what it does until it ends is watched.
        return replace(step, text=f"{drains} Meanwhile {step.text[0].lower()}{step.text[1:]}")
    return replace(step, text=f"{drains} {step.text}")


def _on_node(cure: str, subject: Subject) -> tuple[str, ...]:
    """Return the command that ends a fault of the subject, to be run on its node, where that is known."""
    one = "" if subject.gpu_index is None else f" --id={subject.gpu_index}"
    return () if subject.node is None else (f"{cure.format(gpu=one)}  # on {shlex.quote(subject.node)}",)


def _drain(subject: Subject, where: str) -> str:
    if subject.node or (subject.type == "group" and not subject.ranks):
        return f"Drain {subject.node or where}"
    # A likely machine is the node to look up, and not on one.
    return f"Look up the node of {where.removeprefix('the likely machine of ')}, drain it"


def watch(subject: Subject) -> Action:
    """Return the next step for a fault that has to repeat before it is acted on."""
    return Action("WATCH", f"Watch {place_in_text(subject)}: act when it happens again.")


def check_uplinks(subject: Subject) -> Action:
    """Return the next step where a place fell silent at once and no job is seen to have stopped."""
    if subject.type == "site":
        where = place_in_text(subject)
        ways = f"Check how telemetry leaves {where} (network, brokers), then its uplinks and its power"
        return Action(
            "CHECK_NETWORK", f"{ways}: until a job is seen to stop, silence does not show which it is."
        )
    state = "its nodes send no telemetry, but no job is known to stand still"
    return Action("CHECK_NETWORK", f"Check the uplinks of {place_in_text(subject)}, then its power: {state}.")


def drain(nodes: Sequence[str], finding_id: str, why: str) -> tuple[str, ...]:
    """Return the commands after which no other job starts on the nodes, by workload manager."""
    reason = shlex.quote(f"slowrank {finding_id} {why}")
    return (
        f"scontrol update nodename={shlex.quote(','.join(nodes))} state=drain reason={reason}",
        f"kubectl cordon {' '.join(shlex.quote(node) for node in nodes)}",
    )
