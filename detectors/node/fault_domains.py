"""Common causes of many suspects: the rack, switch or rail whose members fail together.

A greedy explanation by log odds: suspects and domains in, ranked causes out.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Suspect:
    """A part with evidence: ``log_ratio`` is log P(evidence | bad) − log P(evidence | healthy).

    ``onset`` in seconds; ``place`` is the machine it sits in: parts of one machine count once for
    anything larger.
    """

    name: str
    place: str
    log_ratio: float
    onset: float


@dataclass(frozen=True, slots=True)
class Domain:
    """Parts that can fail as one: the suspects among them, and how many parts (``size``) there are in all."""

    type: str
    name: str
    members: frozenset[str]
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainConfig:
    """When members that fail together are one cause.

    ``width``: their onsets lie within so many seconds. ``horizon``: the seconds over which unrelated faults
    would spread, so that each further member in step counts ln(horizon / width). ``missing`` is charged per
    member without evidence. A cause needs ``gain`` and as many machines as ``places``.
    """

    width: float = 2.0
    horizon: float = 600.0
    missing: float = math.log(5.0)
    gain: float = 3.0
    places: int = 3


@dataclass(frozen=True, slots=True)
class DomainCause:
    """A cause: the domain, the suspects it explains, its gain (log odds), its share among the domains that
    could explain them too, and those others with their shares, likeliest first."""

    domain: Domain
    explained: tuple[Suspect, ...]
    gain: float
    probability: float
    others: tuple[tuple[Domain, float], ...] = ()


def explain(
    suspects: Iterable[Suspect],
    domains: Sequence[Domain],
    config: DomainConfig | None = None,
    *,
    counts: Mapping[str, int] | None = None,
) -> list[DomainCause]:
    """Return the causes, best first: each explains its members away before the next is looked for.

    For a domain whose n members with evidence began within ``width`` seconds of each other,

        gain = Σ log LR_i + (n − 1) · ln(horizon / width) − ln(domains of its type) − m · ln 5

    in nats: their evidence; the improbability that unrelated faults coincide; the number of domains tried;
    and a charge for each of the m members without evidence, which a fault of the domain should have hit too.
    A cause needs a gain of 3 (odds of 20) and three machines. Explaining away greedily approximates the set
    cover used for fault localisation (Kompella et al., "IP Fault Localization via Risk Modeling", NSDI 2005);
    the constants are chosen.

    ``counts`` gives the number of domains per type where ``domains`` leaves out some without suspects. Of
    domains with equal gain the smaller one is the cause; one that smaller ones explain better together is
    none.
    """
    config = config or DomainConfig()
    if counts is None:
        counts = {d.type: sum(other.type == d.type for other in domains) for d in domains}
    left = {s.name: s for s in suspects}
    scored = [_scored(domain, left, config, counts) for domain in domains]
    found: list[DomainCause] = []
    while (best := _best(scored, domains, config, counts)) is not None:
        found.append(best)
        gone = {member.name for member in best.explained}
        for name in gone:
            del left[name]
        # Only domains that lost a member change: of hundreds of racks few share one.
        for i, domain in enumerate(domains):
            if scored[i] is not None and not gone.isdisjoint(domain.members):
                scored[i] = _scored(domain, left, config, counts)
    return found


def _best(
    scored: Sequence[DomainCause | None],
    domains: Sequence[Domain],
    config: DomainConfig,
    counts: Mapping[str, int],
) -> DomainCause | None:
    able = sorted((s for s in scored if s is not None and s.gain >= config.gain), key=_order)
    for best in able:
        names = {s.name for s in best.explained}
        # Only smaller ones, so that this ends. What ranks above the one returned was passed over.
        smaller = [d for d in domains if d.size < best.domain.size and not names.isdisjoint(d.members)]
        parts = explain(best.explained, smaller, config, counts=counts)
        if len(parts) < 2 or math.fsum(p.gain for p in parts) <= best.gain:
            return _ranked(best, [e for e in able if e is best or _order(e) > _order(best)])
    return None


def _scored(
    domain: Domain, left: Mapping[str, Suspect], config: DomainConfig, counts: Mapping[str, int]
) -> DomainCause | None:
    """Return what the domain would explain of the suspects left, if enough machines began together."""
    together = _burst([left[name] for name in domain.members if name in left], config.width)
    if len({s.place for s in together}) < config.places:
        return None
    gain = math.fsum(s.log_ratio for s in together)
    gain += (len(together) - 1) * math.log(max(config.horizon / config.width, 1.0))
    gain -= math.log(max(counts.get(domain.type, 1), 1))
    gain -= config.missing * max(domain.size - len(together), 0)
    return DomainCause(domain, together, gain, 1.0)


def _burst(members: list[Suspect], width: float) -> tuple[Suspect, ...]:
    """Return the most members whose onsets lie within ``width`` seconds; of equals, the earliest."""
    members.sort(key=lambda s: (s.onset, s.name))
    first, longest = 0, (0, 0)
    for last, member in enumerate(members):
        while member.onset - members[first].onset > width:
            first += 1
        if last + 1 - first > longest[1] - longest[0]:
            longest = (first, last + 1)
    return tuple(members[slice(*longest)])


def _order(e: DomainCause) -> tuple[float, int, str, str]:
    # Rounded: sums of the same terms in another order must not decide between two domains.
    return (-round(e.gain, 9), e.domain.size, e.domain.type, e.domain.name)


def _ranked(best: DomainCause, able: Sequence[DomainCause]) -> DomainCause:
    names = {s.name for s in best.explained}
    rivals = sorted((e for e in able if not names.isdisjoint(s.name for s in e.explained)), key=_order)
    weights = [math.exp(e.gain - best.gain) for e in rivals]
    total = math.fsum(weights)
    shares = [(e.domain, weight / total) for e, weight in zip(rivals, weights, strict=True)]
    return DomainCause(best.domain, best.explained, best.gain, shares[0][1], tuple(shares[1:]))
