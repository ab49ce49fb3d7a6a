"""Gates between evidence and a finding: what else could have made a rank look slow.

Statistical evidence (``llr_cusum``) states only that a rank's ratio is high. A candidate is confirmed when
none of the other explanations holds, each of which has a function here:

1. The effect is below what matters, or below 4 standard errors of itself, sigma * sqrt(1/steps + 1/baseline).
2. More than half of the ranks are over the threshold: then "slow" and "usual" have changed places, because
   the median belongs to the majority.
3. The rank was on the slow side in less than 65 % of its steps: a few far ones are no slowdown.
4. ``compute``: its role, or its position in a layer, slowed as a whole, or ranks at its place on other
   machines did in the same step (``place_mates``); or it waits more than its mates, as a victim does and a
   culprit does not; or many of its role look as slow and its own past shows no change; or it reports as much
   more work; or several whole machines, single ranks of several, or ranks of many have been as slow since the
   start; or, asked last for it takes longest, healthy ranks are as far off for as many steps (``wanders``).
5. ``data``: it loads no longer than its peers; or most of its stage, or those at its place on the other
   machines, have loaded for as long from the start.
6. ``rest``: it must have taken longer for 20 steps and 20 s, against its own past too, and wait least.

Effects are log ratios to peers (compute) or shares of the peers' work (data, rest), [ranks]. Limits called
"chosen" are trade-offs of recall against false alarms on simulated and recorded jobs
(docs/detection-quality.md) and have no other source.
"""

import math

import numpy as np
import numpy.typing as npt

from detectors.peers.node_effects import MOST_OF_MACHINE, USUAL
from detectors.peers.peers import PeerGroups, group_median, group_quantile
from detectors.peers.place_mates import PlaceMates
from detectors.peers.ratios import Ratios
from detectors.peers.roles import is_one_machine, looks_like_stage
from detectors.peers.rotating_slowness import ROUND
from detectors.peers.shards import Shards
from detectors.robust import nan_median
from detectors.straggler.candidate import LOOK_BEFORE, Candidate, series_of
from detectors.straggler.loading_by_chance import is_by_chance

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# How long a rank must take longer besides what it reports. Chosen: the seconds asked of a wait that all ranks
# share (``shared_wait.LASTS_SECONDS``), and twice its steps, for saving takes several.
REST_STEPS, REST_SECONDS = 20, 20.0

# Chosen: ranks below which one or two are a good part of all, and how many are alike means nothing.
FEW = 8

# Chosen: share of a role from which the usual ones may be the others.
_MANY = 1 / 3

# Effects below this many standard errors are not distinguished from a badly known baseline: by chance one
# rank in 32,000 exceeds it.
SURE_SIGMAS = 4.0

# Chosen: a rank whose lasting difference is below so many times the spread among its peers is different, not
# slow.
UNLIKE_PEERS = 5.0

# Chosen: of so many ranks a single one may be named that always was slower by less than others, if it is so
# many spreads off and no other by so much of that. Of 60 healthy jobs of 64 ranks whose lasting differences
# have a long tail (Student's t of 3 degrees, 0.6 % sd) three were accused, two of them with 5 % and more.
_LEAST_OF_MANY, _MANY_KNOWN, _FAR_OFF, _NEXT = 0.03, 64, 8.0, 0.6

# Chosen: without a shared wall clock nothing holds ranks together, and a change must stand out by itself.
ASYNCHRONOUS_SIGMAS = 3.0

# Chosen, of the rank's own effect: what others must show to be alike, and a change to be the rank's own.
_HALF = 0.5

# Chosen, shares of the rank's excess: waiting more than the first is a victim's, less than the second a
# culprit's. Between them waiting decides nothing: collectives and pipeline bubbles are in it too.
_WAITS_MORE, _WAITS_LESS = 0.5, -0.3

# Stages of published jobs (``positions``): a position has as many ranks on as few of the machines.
_STAGES = 16

# Chosen, of the ranks at its place of other machines: two of several may both be slow.
_MOST = 2 / 3

# Steps in nearly all of which a machine with most of a job must load for long. Chosen: stalls of storage last
# for a few.
_ALL_OF, _NEARLY_ALL = 10, 0.9

# Steps of a coarse clock. Of two times that are alike one may be rounded up and one down; two steps are none.
_COARSE = 1.5

# Chosen, of a slowdown: limits and models slow by the same, and healthy ranks of one differ by some per cent.
_EQUAL = 0.15

# Chosen: ranks that make a pattern; two may both be slow.
_POSITION = 3

# Chosen: of a hundred machines one or two have a fault as a job begins.
_TOO_MANY = 8

# Chosen: of 299 false names in independently drawn jobs 201 were of at most 3.5 %; larger effects keep their
# delay.
SMALL_EFFECT = float(np.log1p(0.035))

# Chosen: five blocks of fifty steps fit into the steps held (``StragglerConfig.history``); of 695 healthy
# ranks three blocks left two.
_LONGEST_BLOCK, _LEAST_BLOCKS = 50, 4

# Chosen: of 20 healthy ranks named in drawn jobs with slow noise 9 remain with 5 and 6 with 6; evidence of
# white noise crosses its threshold at 6.6, so that small effects on recorded steps are named as soon.
_SURE_BLOCKS = 6.0

# Chosen, of a slowdown: a healthy rank of which a block is so far off counts as slow for a spell.
_AS_FAR = 0.75

# Chosen: the scatter of four blocks of as many ranks is known to 2 %, and a step of 8,192 ranks stays cheap.
_MOST_MATES = 256

# Chosen: steps read before the onset for a rank's own past to count, and to show that it was well.
_LEAST_OWN_PAST, _LEAST_BEFORE = 10, 5


def is_confirmed(ratios: Ratios, found: Candidate, over: Bools, places: PlaceMates) -> bool:
    """Check what else could have made the rank look slow: everybody, its stage, waiting, a changed mix.

    ``over`` [ranks] marks all ranks over the threshold at this time, ``places`` are who stands where on its
    machine.
    """
    if not found.size >= np.log1p(_least_effect(ratios, found)):
        return False
    # The median belongs to the majority: with half of those slow who are compared with, "slow" and "usual"
    # change places.
    compared = ~ratios.left_out
    if found.timing == "data":
        for mine, _ in (most for most in ratios.most_of_job if found.rank in most[0]):
            compared[mine] = False
            # A few others are a poor median, and a host that stalls for some steps is no slow loader.
            lately = found.x[-_ALL_OF:, found.rank]
            enough = found.lasting or len(lately) == _ALL_OF
            if not enough or np.mean(lately >= _HALF * found.size) < _NEARLY_ALL:
                return False
    if 2 * np.count_nonzero(over & compared) > np.count_nonzero(compared) or not found.is_persistent:
        return False
    if found.timing == "data":
        # A rank loads its data by itself: no wait or amount of work makes it load longer. Loading is a share
        # of the work: where work grows, a rank that always loads less seems to load more.
        return (
            _now(ratios, found) >= _HALF * found.size
            and not _loads_for_others(ratios, found, places)
            and not is_by_chance(ratios, found, over)
        )
    if found.timing == "rest":
        return _stalls_by_itself(ratios, found)
    return not (
        _is_shared_by_role(ratios, found)
        or waits_least(ratios, found) is False
        or (_others_may_have_changed(ratios, found) and not _changed_itself(ratios, found))
        or has_more_work(ratios, found)
        or _is_class(ratios, found)
        or _is_one_of_too_many(ratios, found, places)
        or _is_one_of_equals(ratios, found, places)
        or _rose_with_its_place(ratios, found, places)
    )


def _loads_for_others(ratios: Ratios, found: Candidate, places: PlaceMates) -> bool:
    """Return whether most of its stage, or most ranks at its place on other machines, have loaded for as long
    from the start: it is their part."""
    loads = found.effect >= _HALF * found.size
    parts = (ratios.mates(found.rank), places.of(found.rank))
    return found.lasting and any(bool(part.any()) and np.mean(loads[part]) >= _MOST for part in parts)


def waits_least(ratios: Ratios, found: Candidate) -> bool | None:
    """Whether the rank waits less than its role mates, as a culprit does; False if it waits clearly more.

    Where no waits are reported, collectives are where ranks wait for what is outside of their compute.
    """
    waits = ratios.history.last("wait", found.steps)
    if found.timing == "rest" and not np.isfinite(waits).any():
        waits = ratios.history.last("comm", found.steps)
    seconds = ratios.history.last("compute", found.steps)
    mates = ratios.mates(found.rank)
    if found.timing == "rest" and not mates.any():
        mates = np.arange(ratios.ranks) != found.rank
    if not np.isfinite(waits[:, found.rank]).any() or not np.isfinite(waits[:, mates]).any():
        return None
    more = float(nan_median(waits[:, found.rank]) - nan_median(waits[:, mates].ravel()))
    excess = found.excess * float(nan_median(seconds[:, mates].ravel()))
    # The others wait for the culprit as long as it takes longer; the culprit waits for no rank.
    if more > _WAITS_MORE * excess:
        return False
    return True if more < _WAITS_LESS * excess else None


def small_effect(ratios: Ratios) -> float:
    """Return the log ratio below which healthy ranks may be as far off for many steps: more where their work
    differs."""
    uneven = 0.0 if ratios.kind.kind == "fixed" else float(np.log1p(ratios.config.min_effect_uneven))
    return max(SMALL_EFFECT, uneven)


def _least_effect(ratios: Ratios, found: Candidate) -> float:
    config, fixed = ratios.config, ratios.kind.kind == "fixed"
    # Where work hardly differs, a small change is held against how healthy ranks wander.
    small = fixed or (ratios.kind.kind == "between" and not found.lasting)
    least = config.min_effect if small else config.min_effect_uneven
    if ratios.asynchronous:
        least = least if fixed else config.min_effect_asynchronous
        least = max(least, ASYNCHRONOUS_SIGMAS * found.sigma)
    if found.lasting:
        unlike = float(np.expm1(UNLIKE_PEERS * min(ratios.lasting_spread(), found.spread)))
        lasting = config.min_effect_lasting
        if fixed and ratios.ranks >= _MANY_KNOWN and _is_the_only_one(found):
            far = float(np.expm1(_FAR_OFF * ratios.lasting_spread()))
            lasting = min(lasting, max(_LEAST_OF_MANY, far))
        least = max(least, lasting, unlike)
    return max(least, _COARSE * ratios.resolution, SURE_SIGMAS * found.uncertainty)


def _is_the_only_one(found: Candidate) -> bool:
    """Return whether no other rank is nearly as slow, on its machine or elsewhere."""
    return int(np.count_nonzero(found.effect >= _NEXT * found.size)) <= 1


def _is_shared_by_role(ratios: Ratios, found: Candidate) -> bool:
    """Return whether a role that is known, or looks like one, slowed as a whole."""
    if not ratios.roles_known:
        alike = (
            not _stands_alone(ratios, found)
            if found.lasting
            else is_position(ratios, found.rank, found.effect)
        )
        return alike
    return goes_with_role(ratios, found.rank, found.effect) or _stands_with_position(ratios, found)


def _stands_with_position(ratios: Ratios, found: Candidate) -> bool:
    """Return whether in its slow steps it takes as long as others at its position, unlike the rest.

    A median over a time of which half is slow is high for one of two ranks alike, and low for the other.
    """
    if ratios.shards is None or found.lasting:
        return False
    slow = found.x[:, found.rank] >= _HALF * found.size
    levels = nan_median(ratios.history.last("role", found.steps)[slow])
    role = ratios.groups.index == ratios.groups.index[found.rank]
    return ratios.shards.stands_with(levels, found.rank, role, size=found.size)


def goes_with_role(ratios: Ratios, rank: int, effect: Floats) -> bool:
    """Return whether all mates of a small role, or all machines of a small class, or all of one position
    slowed alike, by ``effect`` [ranks]."""
    mates = ratios.mates(rank)
    alike = effect[mates] >= _HALF * effect[rank]
    if ratios.small_role[rank] and mates.any() and alike.all():
        return True
    middle = group_median(np.where(ratios.class_mates(rank), effect, np.nan), ratios.nodes)
    others = middle[np.isfinite(middle)]
    if others.size and (others >= _HALF * effect[rank]).all():
        return True
    role = ratios.groups.index == ratios.groups.index[rank]
    return ratios.shards is not None and ratios.shards.explain(effect, rank, role)


def _stands_alone(ratios: Ratios, found: Candidate) -> bool:
    """Distinguish slow ranks from a stage where there are no coordinates.

    Ranks slow from the start may be a stage: until roles are learnt, only one alone can be called slow, or
    those of few replicas (``batches``), and later none that form a pattern.
    """
    similar = found.effect >= _HALF * found.size
    if ratios.roles_settled:
        stage = looks_like_stage(found.effect, similar, ratios.batches)
        return not stage or is_one_machine(found.effect, similar, ratios.nodes)
    no_stage = ratios.batches is not None and ratios.batches.rule_out_stage(similar)
    return no_stage or bool(similar.sum() == 1)


def is_position(ratios: Ratios, rank: int, effect: Floats) -> bool:
    """Return whether every k-th rank became as slow, by ``effect`` [ranks]: without coordinates, a position
    of the layer, such as an expert that is popular (``shards``). Not where the slow ranks are all of one
    machine or two, among which ranks were dealt out in turn, or of one replica."""
    slow, parts = effect >= _HALF * effect[rank], []
    of_replica = ratios.batches is not None and ratios.batches.rule_out_stage(slow)
    if of_replica or _fills_machines(ratios.nodes, slow):
        return False
    for each, stage, label in ratios.positions.partitions:
        same, mates = label == label[rank], stage == stage[rank]
        # Of two groups in a row others than positions make as much, and a slow machine has ranks of each.
        most = np.count_nonzero(slow & same) > _HALF * np.count_nonzero(slow & mates)
        if most and np.count_nonzero(same) >= _POSITION * each:
            parts.append(label)
    everyone = np.ones(ratios.ranks, dtype=np.bool_)
    return Shards(tuple(parts), ratios.nodes.index).explain(effect, rank, everyone)


def _fills_machines(nodes: PeerGroups, slow: Bools) -> bool:
    """Return whether most of the ``slow`` ranks [ranks] are most of one machine or two."""
    on = np.bincount(nodes.index, weights=slow)
    whole = (on >= MOST_OF_MACHINE * nodes.sizes) & (nodes.sizes >= 2)
    few = 0 < int(whole.sum()) < _POSITION
    return few and bool(on[whole].sum() >= MOST_OF_MACHINE * on.sum())


def _rose_with_its_place(ratios: Ratios, found: Candidate, places: PlaceMates) -> bool:
    """Return whether ranks at its place on other machines became as slow in the same step (``PlaceMates``).

    What one rank of each machine does for the others, most of them show. Without coordinates there may be too
    few ranks at a position of the layer to see it (``is_position``), and those of one stage are enough.
    """
    if places.seen[found.rank]:
        return True
    x = ratios.history.last("x", min(found.steps + LOOK_BEFORE, ratios.settled))
    # What began before all that is held has no past to compare with.
    past = len(x) - found.steps >= _LEAST_OWN_PAST
    # Dated back over steps in which it was not slow, the others would seem to be well in most.
    slow = found.x[:, found.rank] >= _HALF * found.size
    rise = nan_median(found.x[slow])
    if past:
        rise = nan_median(x[-found.steps :][slow]) - nan_median(x[: -found.steps])
    least = _MOST if ratios.roles_known else 1 / _STAGES
    return _is_of_its_place(ratios, found.rank, rise, int(slow.sum()), places, least=least)


def comes_with_its_place(ratios: Ratios, rank: int, x: Floats, slow: Bools, places: PlaceMates) -> bool:
    """Return whether most ranks at its place on other machines are slow in the same steps, again and again:
    those of ``x`` [steps, ranks] in which it is ``slow`` [steps], against the others."""
    if places.seen[rank]:
        return True
    if not places.of(rank).any() or slow.all():
        return False
    rise = nan_median(x[slow]) - nan_median(x[~slow])
    return _is_of_its_place(ratios, rank, rise, int(slow.sum()), places, least=_MOST)


def _is_of_its_place(
    ratios: Ratios, rank: int, rise: Floats, steps: int, places: PlaceMates, *, least: float
) -> bool:
    size = float(rise[rank])
    rose = places.rose(rank, rise, size=size, least=least)
    # A slow replica has a rank at this place of many machines where their number suits.
    if not rose.any() or (ratios.batches is not None and ratios.batches.rule_out_stage(rose)):
        return False
    held = ratios.history.last("x", min(ratios.settled, ratios.history.capacity))
    if places.by_chance(rank, held, steps, size=size, rose=int(rose.sum())):
        return False
    # Those who are slower by more than their place are asked for themselves.
    places.seen |= rose & (rise <= size / _HALF)
    return True


def wanders(ratios: Ratios, found: Candidate) -> bool:
    """Return whether healthy ranks are often as far off for as many steps.

    With L the steps of the slowdown (at most 50, or a quarter of those held) and k blocks of L steps, d_rb is
    the median ratio of rank r in block b less the median of these over its blocks. The sd of d over mates,
    without those that are as slow on its machine, limited to 3 robust sigmas, is the noise of such blocks,
    whatever correlates their steps: noise of hundreds of steps hardly shows in an autocorrelation of lag 1.
    Where fewer steps are held, that of L is extrapolated from shorter blocks (``is_as_usual``). (Batch means,
    Schmeiser 1982; medians, as spikes fill some blocks.) Few blocks that are far off, as those
    of ranks to which the work wanders, do not show in it: three that begin at different times are enough.
    """
    if found.lasting:
        return False
    mates = ratios.mates(found.rank)
    if mates.sum() < FEW:
        mates = np.ones(ratios.ranks, dtype=np.bool_)
    # What slows its machine is looked for and no noise; others as slow show how healthy ranks wander.
    own = ratios.nodes.index == ratios.nodes.index[found.rank]
    others = np.flatnonzero(mates & ~(own & (found.effect >= _HALF * found.size)))
    if not others.size:
        return False
    # Every n-th and not the first ones, which stand on few machines.
    some = others[:: math.ceil(others.size / _MOST_MATES)]
    held = min(ratios.settled, ratios.history.capacity)
    return is_as_usual(found.size, block_length(found), ratios.history.last("x", held)[:, some])


def is_as_usual(size: float, length: int, others: Floats, *, block_steps: int | None = None) -> bool:
    """Return whether healthy ``others`` [steps, others] are often off by ``size`` for ``length`` steps.

    ``block_steps``: the length of the blocks that are compared (``length``, at most a quarter of the steps).
    From shorter ones the noise is extrapolated to ``length``: it falls as from half of them to the whole, by
    sqrt(2) for each doubling at most.
    """
    block = min(block_steps or length, len(others) // _LEAST_BLOCKS)
    if block <= 0:
        return False
    apart = _blocks_apart(others, block)
    scatter = _scatter(apart)
    halves = _scatter(_blocks_apart(others, block // 2)) if 1 < block < length else 0.0
    # Times of a coarse clock are alike in most short blocks: nothing falls there.
    if halves:
        falls = min(max(scatter / halves, math.sqrt(0.5)), 1.0)
        scatter *= falls ** math.log2(length / block)
    return size < _SURE_BLOCKS * scatter or _spells(apart, _AS_FAR * size) >= ROUND


def block_length(found: Candidate) -> int:
    """Return the steps of a block that a slowdown is held against (``wanders``)."""
    return min(found.steps, _LONGEST_BLOCK)


def has_more_work(ratios: Ratios, found: Candidate) -> bool:
    """Return whether the work that the rank reports beyond its mates' explains its excess.

    With a(t) the log of the rank's amount over the median of its mates', the work explains
    median a(slow steps since the onset) - median a(before), at most: the time of a step grows no faster than
    its amount, and no more than a fit of time against amounts shows (``Ratios.cost``), once there is one.
    What is kept of a fit is out of the ratios already.
    """
    if ratios.work is not None:
        return False
    last = ratios.history.last
    steps = found.steps + LOOK_BEFORE
    amounts = {name: np.where((a := last(name, steps)) > 0, a, np.nan) for name in ("tokens", "squares")}
    if not any(np.isfinite(a[-found.steps :, found.rank]).any() for a in amounts.values()):
        return False
    explained = max(_grown(ratios, found, np.log(amount)) for amount in amounts.values())
    if ratios.cost is not None:
        explained = min(explained, _grown(ratios, found, ratios.cost.log_expected(**amounts)))
    return bool(found.size - max(explained, 0.0) < np.log1p(ratios.config.min_effect))


def _grown(ratios: Ratios, found: Candidate, amount: Floats) -> float:
    """Return by how much the rank's share of a log ``amount`` [steps, ranks] has grown; 0 where unknown."""
    mates = ratios.mates(found.rank)
    if not mates.any():
        mates = np.arange(ratios.ranks) != found.rank
    share = amount[:, found.rank] - nan_median(amount[:, mates], axis=1)
    before = 0.0 if found.lasting else float(np.nan_to_num(nan_median(share[: -found.steps])))
    # In the others since the onset it had as much work as ever.
    slow = ratios.history.last("x", len(share))[-found.steps :, found.rank] >= _HALF * found.size
    since = share[-found.steps :]
    return float(np.nan_to_num(nan_median(since[slow] if slow.any() else since))) - before


def _levels(ratios: Ratios, found: Candidate) -> Floats | None:
    """Return by how much ranks are slower than their roles since the first step, [ranks]; None where the rank
    was well before."""
    if found.lasting:
        return found.effect
    before = ratios.settled - found.steps
    if before >= LOOK_BEFORE:
        return None
    # A baseline is drawn to what is usual of all, and what is left of a difference looks like a change.
    role = ratios.history.last("role", ratios.settled)
    levels = nan_median(role[-found.steps :])
    was = nan_median(role[: -found.steps, found.rank]) if before >= _LEAST_BEFORE else math.inf
    return None if was < _HALF * levels[found.rank] else levels


def _is_class(ratios: Ratios, found: Candidate) -> bool:
    """Return whether several whole machines have been as slow since the first step: a class of machines, of
    another model or under a power limit, and no as many faults that began before the job; or whether most of
    its role is as slow, and the others are a class of faster ones."""
    levels = _levels(ratios, found)
    if levels is None:
        return False
    groups, least = ratios.groups, _HALF * float(levels[found.rank])
    role = groups.index == groups.index[found.rank]
    if ratios.left_out[found.rank]:
        # A machine that is suspected by what it shows in other roles may have most of this one.
        role &= ~ratios.left_out
    if role.sum() >= FEW and np.mean(levels[role] >= least) > _HALF:
        return True
    # Of a role of which half is slow, the median is neither's.
    over_usual = levels - groups.spread_out(group_quantile(levels, groups, USUAL))
    return any(ratios.slow_class(e, least=least)[found.rank] for e in (levels, over_usual))


def _is_one_of_too_many(ratios: Ratios, found: Candidate, places: PlaceMates) -> bool:
    """Return whether those as slow since the first step are on too many machines for faults, and of no one
    group: roles are not as they were learnt."""
    levels = _levels(ratios, found)
    if levels is None:
        return False
    slow = levels >= _HALF * float(levels[found.rank])
    of_replica = ratios.batches is not None and ratios.batches.rule_out_stage(slow)
    machines = np.unique(ratios.nodes.index[slow]).size
    return machines >= _TOO_MANY and not (of_replica or places.in_one_group(slow))


def _is_one_of_equals(ratios: Ratios, found: Candidate, places: PlaceMates) -> bool:
    """Return whether single ranks of several machines have been slower by the same since the first step: they
    are under one power limit, or of one kind. Faults of several are not of one size, and those of a group are
    its own."""
    levels = _levels(ratios, found)
    if levels is None:
        return False
    size = float(levels[found.rank])
    equal = np.abs(levels - size) <= _EQUAL * size
    slow = levels >= _HALF * size
    if not max(_POSITION, _MOST * np.count_nonzero(slow)) <= np.count_nonzero(equal):
        return False
    on = np.bincount(ratios.nodes.index, weights=equal)
    whole = (on >= MOST_OF_MACHINE * ratios.nodes.sizes) & (ratios.nodes.sizes > 1)
    return bool(np.count_nonzero(on) > 1 and not whole.any() and not places.in_one_group(equal))


def _blocks_apart(x: Floats, length: int) -> Floats:
    """Return medians of ``x`` [steps, ranks] over blocks of steps less each rank's usual one, [blocks,
    ranks]."""
    blocks = len(x) // length
    middle = nan_median(x[-blocks * length :].reshape(blocks, length, -1), axis=1)
    apart: Floats = middle - nan_median(middle)
    return apart


def _scatter(blocks: Floats) -> float:
    """Return the sd of ``blocks`` [blocks, ranks], of limited values."""
    apart = np.abs(blocks[np.isfinite(blocks)])
    if not apart.size:
        return 0.0
    # A mate that did change is no noise, and would hide all others.
    limited = np.minimum(apart, 3.0 * 1.4826 * np.median(apart))
    # Of few blocks much of the scatter went into their median: n / (n - 1), as for a variance.
    return math.sqrt(float(np.mean(limited**2)) * len(blocks) / (len(blocks) - 1))


def _spells(blocks: Floats, far: float) -> int:
    """Return at how many different times ranks began to be ``far`` off, each for the first time: those of a
    machine that becomes slow, or at one position, begin together."""
    off = blocks >= far
    return len(set(off.argmax(axis=0)[off.any(axis=0)].tolist()))


def _stalls_by_itself(ratios: Ratios, found: Candidate) -> bool:
    """Return whether a rank does more than it did besides what it reports, for good, and waits least.

    What is not reported may be many things: saving takes some steps, and a rank that waits in a pipeline
    makes no other rank wait.
    """
    lasts = float(np.nanmax(ratios.history.last("ts", 1))) - found.onset.at
    if found.steps < REST_STEPS or lasts < REST_SECONDS or found.recent < _HALF * found.size:
        return False
    before, since = _before_and_since(ratios, "rest", found)
    work = float(nan_median(ratios.history.last("compute", found.steps).ravel()))
    rose = float(nan_median(since) - nan_median(before)) >= _HALF * found.size * work
    return rose and waits_least(ratios, found) is True


def _before_and_since(ratios: Ratios, series: str, found: Candidate) -> tuple[Floats, Floats]:
    """Return a series of the rank in the steps before its onset and since then."""
    values = ratios.history.last(series, found.steps + LOOK_BEFORE)[:, found.rank]
    return values[: -found.steps], values[-found.steps :]


def _others_may_have_changed(ratios: Ratios, found: Candidate) -> bool:
    """Return whether only its own past can show that the rank changed: nothing holds the ranks together, many
    look as slow, or it was quicker than its peers and is as quick as they are now."""
    if ratios.asynchronous or _is_one_of_many(ratios, found):
        return True
    return not found.lasting and _now(ratios, found) < _HALF * found.size


def _now(ratios: Ratios, found: Candidate) -> float:
    """Return by how much the rank has been over its peers since the onset, whatever is usual of it."""
    series = series_of(found.timing, lasting=found.lasting)
    return float(nan_median(ratios.history.last(series, found.steps)[:, found.rank]))


def _is_one_of_many(ratios: Ratios, found: Candidate) -> bool:
    """Return whether a good part of its role looks as slow: they may be slower or the others faster, which
    only their own past shows.
    """
    role = ratios.groups.index == ratios.groups.index[found.rank]
    alike = found.effect[role] >= _HALF * found.size
    return not found.lasting and alike.size >= FEW and bool(np.mean(alike) >= _MANY)


def _changed_itself(ratios: Ratios, found: Candidate) -> bool:
    before, since = _before_and_since(ratios, "v", found)
    if np.isfinite(before).sum() < _LEAST_OWN_PAST:
        return False
    return bool(nan_median(since) - nan_median(before) >= _HALF * found.size)
