"""Fusion: votes of independent evidence families to one confidence and one most likely cause.

Each suspicion votes with a log-likelihood ratio L (natural log) for "this subject is at fault". Metrics of
one family (step times, clocks, GPU memory, network ports, …) share their noise, so a family has one vote,
its strongest, clipped to [−4, 6]. Families are treated as independent given the fault (naive Bayes):

    log-odds  =  prior + Σ_families clip(max |L|)
    p         =  calibration(what it rests on, log-odds)

Causes are weighed the same way: each hypothesis adds up its log-odds over families, and their softmax gives
the probabilities in ``cause``. A symptom (a slow rank) argues for no cause, so its own kind enters with 0,
and a hypothesis that another present one explains (a low clock, by heat) is left out. The kind of a fatal
fault that leads its finding is at least as likely as any other.

Source: Bayesian evidence combination in log-odds (I. J. Good, Weight of evidence, 1985). The clip bounds the
damage of one wrong detector; prior (−3: one in twenty of what is looked at is a fault) and clips are chosen,
and what they leave wrong is corrected by the fitted calibration.
"""

import math
from collections.abc import Iterable, Mapping

from alerts.finding import Cause
from alerts.harm import IMPACT
from alerts.kind import Standing
from alerts.kinds import kind_of
from alerts.reasoning.calibration import FITTED, Basis, Calibration
from alerts.stated_severity import isolated
from slowrank.telemetry import Suspicion

# Largest votes of one family (log-odds, chosen): one wrong detector must not outvote all the others.
FLOOR, CEILING = -4.0, 6.0

MACHINE_FAMILIES = frozenset({"clocks", "gpu_memory", "nvlink_pcie", "nic", "host", "event"})

# Probability from which another explanation is listed (chosen: 5 %).
MENTIONED_ABOVE = 0.05


# Of fewer peers the median is a mean, which one odd peer shifts.
LEAST_PEERS = 3

# Vote of a slow machine that opens a finding by itself: ``WEIGHT_SLOW`` of ``streams.job.suspicions``.
SUFFICES = 5.0


# What the transfers of a slow machine argue for, where they make up most of its excess, and how strongly
# (chosen: an explanation among others, which a port's own evidence confirms or outweighs).
_NETWORK, _SLOW_TRANSFERS, _MOST_OF_IT = "link.nic_slow", 2.0, 0.5


def family_votes(suspicions: Iterable[Suspicion]) -> dict[str, float]:
    """Return each family's strongest vote in log-odds, clipped: metrics of one family are one witness."""
    votes: dict[str, float] = {}
    for s in suspicions:
        vote = min(CEILING, max(FLOOR, s.log_likelihood_ratio))
        # Of two that are as strong the accusing one, whichever came first.
        votes[s.family] = max(votes.get(s.family, 0.0), vote, key=lambda v: (abs(v), v))
    return votes


def fused_log_odds(suspicions: Iterable[Suspicion], prior_log_odds: float) -> float:
    """Return prior + Σ votes, one vote a family."""
    votes = family_votes(suspicions)
    # The same votes give the same bits, in whatever order they came (docs/decisions/0006).
    return prior_log_odds + math.fsum(votes[family] for family in sorted(votes))


def confidence(
    suspicions: Iterable[Suspicion],
    prior_log_odds: float,
    *,
    basis: Basis,
    calibration: Calibration = FITTED,
) -> float:
    """Return the calibrated probability of the fused log-odds on a ``basis``, in (0, 1)."""
    return calibration.probability(basis, fused_log_odds(suspicions, prior_log_odds))


def basis_of(suspicions: Iterable[Suspicion], *, hurt: bool = False) -> Basis:
    """Return what a finding with these suspicions rests on, given whether its cause has ``hurt`` a job.

    What hardware reports distinguishes causes that step times alone do not.
    """
    members = tuple(suspicions)
    stops = [s for s in members if s.kind.startswith("hang.")]
    if any(kind_of(s.kind).hang for s in stops) or (stops and len(stops) == len(members)):
        return "stop"
    if any(s.family in MACHINE_FAMILIES for s in members):
        return "hardware"
    slow = [s for s in members if s.family == "timing" and s.subject.type in ("gpu", "rank", "node", "group")]
    slow = [s for s in slow if kind_of(s.kind).standing is Standing.SYMPTOM]
    if not slow:
        return "other"
    if any(kind_of(name).uneven for s in slow for name in s.hypotheses):
        return "uneven"
    evidence = [e for s in slow for e in s.evidence]
    peers = [e.peers.n for e in evidence if e.peers is not None]
    if peers and max(peers) < LEAST_PEERS:
        return "few_peers"
    if not any(e.metric.startswith(("compute", "data", "rest")) for e in evidence):
        return "step_times"
    if max(s.log_likelihood_ratio for s in slow) < SUFFICES:
        return "weak"
    if hurt:
        return "slows_job"
    ratios = [s.slowdown_ratio for s in slow if s.slowdown_ratio is not None]
    return "small" if ratios and max(ratios) < IMPACT else "large"


def cause(kind: str, suspicions: Iterable[Suspicion]) -> Cause:
    """Return the most likely explanation of a finding of ``kind``, the others above 5 %, what was ruled out.

    A detector that names hypotheses is taken at its relative log-odds; one that does not argues for its own
    kind. For each hypothesis the families' arguments add up. A symptom by itself explains nothing, so its own
    kind enters with log-odds 0; what another hypothesis explains (a low clock, by a throttle) does not
    compete with it. Without a competitor the kind itself has no share.
    """
    members = tuple(suspicions)
    argued: dict[str, dict[str, float]] = {}
    for s in members:
        for name, value in _arguments(s).items():
            families = argued.setdefault(name, {})
            families[s.family] = max(value, families.get(s.family, -math.inf))
    odds = {name: math.fsum(families[f] for f in sorted(families)) for name, families in argued.items()}
    # A link that was lost once leaves no lasting fault behind.
    lasting = {n for n in odds if not isolated(n, (s.severity for s in members if s.kind == n))}
    odds = {name: value for name, value in odds.items() if lasting.isdisjoint(kind_of(name).explained_by)}
    if kind in odds and _leads(kind, members):
        # It leads because it is the gravest: what else is broken, however surely, does not replace it.
        odds[kind] = max(odds.values())
    shares = softmax(odds or {kind: 0.0})
    best = min(shares, key=lambda name: (-shares[name], name != kind, name))
    others = {n: round(p, 4) for n, p in sorted(shares.items()) if n != best and p > MENTIONED_ABOVE}
    cleared = {name for s in members for name in s.ruled_out} - shares.keys()
    # A finding does not explain itself: alone, its own kind is all of nothing.
    share = None if list(shares) == [kind] else round(shares[best], 4)
    return Cause(best, share, others, tuple(sorted(cleared)))


def _arguments(s: Suspicion) -> Mapping[str, float]:
    if s.hypotheses:
        slow = {_NETWORK: _SLOW_TRANSFERS} if _transfers(s) else {}
        return slow | {name: 0.0 if _is_symptom(name) else odds for name, odds in s.hypotheses.items()}
    is_cause = kind_of(s.kind).standing in (Standing.CAUSE, Standing.FATAL)
    return {s.kind: min(CEILING, max(FLOOR, s.log_likelihood_ratio)) if is_cause else 0.0}


def _leads(kind: str, members: Iterable[Suspicion]) -> bool:
    """Return whether a kind is a fatal fault for which no detector of it has another explanation."""
    if kind_of(kind).standing is not Standing.FATAL or kind_of(kind).hang:
        return False
    return not any(s.hypotheses for s in members if s.kind == kind)


def _transfers(s: Suspicion) -> bool:
    """Return whether a slow machine takes longer for its transfers themselves, and not to compute."""
    if s.kind != "straggler.fail_slow" or s.family != "timing":
        return False
    excess = {e.metric: e.value - e.peers.median for e in s.evidence if e.peers is not None}
    computes = any(e.metric.startswith(("compute", "data")) for e in s.evidence)
    return not computes and excess.get("comm_seconds", 0.0) > _MOST_OF_IT * excess.get(
        "rest_seconds", math.inf
    )


def _is_symptom(name: str) -> bool:
    return kind_of(name).standing is Standing.SYMPTOM


def softmax(odds: Mapping[str, float]) -> dict[str, float]:
    """Return the share of each in all, of log-odds."""
    top = max(odds.values())
    weights = {name: math.exp(value - top) for name, value in odds.items()}
    total = math.fsum(weights[name] for name in sorted(weights))
    return {name: weight / total for name, weight in weights.items()}
