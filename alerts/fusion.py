"""Votes of independent evidence families to one confidence and one most likely cause."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from alerts.finding import Cause
from alerts.kinds import Standing, rule_of
from slowrank.telemetry import Suspicion

FLOOR, CEILING = -4.0, 6.0
MACHINE_FAMILIES = frozenset({"clocks", "gpu_memory", "nvlink_pcie", "nic", "host", "event"})
MENTIONED_ABOVE = 0.05


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits on the confidence: what the inputs cannot tell, no vote can make sure.

    Below 3 peers 0.6; a slow machine argued from step times alone, without compute times or hardware
    evidence (telemetry tiers T0 and T1), 0.7.
    """

    few_peers: float = 0.6
    low_tier: float = 0.7


def family_votes(suspicions: Iterable[Suspicion]) -> dict[str, float]:
    """Return each family's strongest vote in log-odds, clipped: metrics of one family are one witness."""
    votes: dict[str, float] = {}
    for s in suspicions:
        vote = min(CEILING, max(FLOOR, s.log_likelihood_ratio))
        votes[s.family] = max(votes.get(s.family, 0.0), vote, key=lambda v: (abs(v), v))
    return votes


def confidence(suspicions: Iterable[Suspicion], prior_log_odds: float, caps: Caps | None = None) -> float:
    """Return σ(prior + Σ votes) under the caps, in (0, 1)."""
    members = tuple(suspicions)
    votes = family_votes(members)
    log_odds = prior_log_odds + math.fsum(votes[family] for family in sorted(votes))
    return min(_logistic(log_odds), _cap(members, caps or Caps()))


def cause(kind: str, suspicions: Iterable[Suspicion]) -> Cause:
    """Return the most likely explanation of a finding of ``kind``, the others above 5 %, what was ruled out.

    A detector that names hypotheses is taken at its relative log-odds; one that does not argues for its own
    kind. A symptom by itself explains nothing, so its own kind enters with log-odds 0; what another
    hypothesis explains (a low clock, by a throttle) does not compete with it.
    """
    members = tuple(suspicions)
    odds: dict[str, float] = {}
    for s in members:
        for name, value in _arguments(s).items():
            odds[name] = max(value, odds.get(name, -math.inf))
    odds = {name: value for name, value in odds.items() if odds.keys().isdisjoint(rule_of(name).explained_by)}
    shares = _softmax(odds or {kind: 0.0})
    best = min(shares, key=lambda name: (-shares[name], name))
    others = {n: round(p, 4) for n, p in sorted(shares.items()) if n != best and p > MENTIONED_ABOVE}
    cleared = {name for s in members for name in s.ruled_out} - shares.keys()
    return Cause(best, round(shares[best], 4), others, tuple(sorted(cleared)))


def _arguments(s: Suspicion) -> Mapping[str, float]:
    if s.hypotheses:
        return {name: 0.0 if _is_symptom(name) else odds for name, odds in s.hypotheses.items()}
    is_cause = rule_of(s.kind).standing in (Standing.CAUSE, Standing.FATAL)
    return {s.kind: min(CEILING, max(FLOOR, s.log_likelihood_ratio)) if is_cause else 0.0}


def _is_symptom(name: str) -> bool:
    return rule_of(name).standing is Standing.SYMPTOM


def _cap(members: tuple[Suspicion, ...], caps: Caps) -> float:
    if any(s.family in MACHINE_FAMILIES for s in members):
        return 1.0
    slow = [s for s in members if s.family == "timing" and s.subject.type in ("gpu", "rank", "node")]
    slow = [s for s in slow if rule_of(s.kind).standing is Standing.SYMPTOM]
    if not slow:
        return 1.0
    evidence = [e for s in slow for e in s.evidence]
    peers = [e.peers.n for e in evidence if e.peers is not None]
    if peers and max(peers) < 3:
        return caps.few_peers
    return 1.0 if any(e.metric.startswith(("compute", "data")) for e in evidence) else caps.low_tier


def _softmax(odds: Mapping[str, float]) -> dict[str, float]:
    top = max(odds.values())
    weights = {name: math.exp(value - top) for name, value in odds.items()}
    total = math.fsum(weights[name] for name in sorted(weights))
    return {name: weight / total for name, weight in weights.items()}


def _logistic(x: float) -> float:
    if x >= 0:
        return 1.0 / (1.0 + math.exp(-x))
    return math.exp(x) / (1.0 + math.exp(x))
