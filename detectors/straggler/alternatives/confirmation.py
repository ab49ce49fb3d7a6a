"""Confirmation of a candidate: what else could have made a rank look slow.

Statistical evidence (``llr_cusum``) states only that a rank's ratio is high. A candidate is confirmed when
none of the other explanations holds, each of which has a function in this folder:

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

import numpy as np
import numpy.typing as npt

from detectors.peers.places.place_mates import PlaceMates
from detectors.peers.ratios import Ratios
from detectors.robust import nan_median
from detectors.straggler.alternatives.dealt_anew import is_dealt_anew
from detectors.straggler.alternatives.loading_by_chance import is_by_chance
from detectors.straggler.alternatives.loading_part import loads_for_others
from detectors.straggler.alternatives.machine_class import is_class, is_one_of_equals, is_one_of_too_many
from detectors.straggler.alternatives.more_work import has_more_work
from detectors.straggler.alternatives.position import is_shared_by_role, rose_with_its_place
from detectors.straggler.alternatives.waiting import waits_least
from detectors.straggler.candidate import (
    FEW,
    HALF,
    LEAST_OWN_PAST,
    LOOK_BEFORE,
    Candidate,
    over_peers,
)

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# How long a rank must take longer besides what it reports. Chosen: the seconds asked of a wait that all ranks
# share (``shared_wait.LASTS_SECONDS``), and twice its steps, for saving takes several.
REST_STEPS, REST_SECONDS = 20, 20.0

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

# Steps in nearly all of which a machine with most of a job must load for long. Chosen: stalls of storage last
# for a few.
_ALL_OF, _NEARLY_ALL = 10, 0.9

# Steps of a coarse clock. Of two times that are alike one may be rounded up and one down; two steps are none.
_COARSE = 1.5

# Chosen: of 299 false names in independently drawn jobs 201 were of at most 3.5 %; larger effects keep their
# delay.
SMALL_EFFECT = float(np.log1p(0.035))


def is_confirmed(ratios: Ratios, found: Candidate, over: Bools, places: PlaceMates) -> bool:
    """Check what else could have made the rank look slow: everybody, its stage, waiting, a changed mix.

    ``over`` [ranks] marks all ranks over the threshold at this time, ``places`` are who stands where on its
    machine.
    """
    if not found.size >= np.log1p(_least_effect(ratios, found)):
        return False
    # The median belongs to the majority: with half of those slow who are compared with, "slow" and "usual"
    # change places.
    compared = ~ratios.comparison.left_out
    if found.timing == "data":
        for mine, _ in (most for most in ratios.most_of_job if found.rank in most[0]):
            compared[mine] = False
            # A few others are a poor median, and a host that stalls for some steps is no slow loader.
            lately = found.x[-_ALL_OF:, found.rank]
            enough = found.lasting or len(lately) == _ALL_OF
            if not enough or np.mean(lately >= HALF * found.size) < _NEARLY_ALL:
                return False
    if 2 * np.count_nonzero(over & compared) > np.count_nonzero(compared) or not found.is_persistent:
        return False
    if found.timing == "data":
        # A rank loads its data by itself: no wait or amount of work makes it load longer. Loading is a share
        # of the work: where work grows, a rank that always loads less seems to load more.
        return (
            over_peers(ratios, found) >= HALF * found.size
            and not (found.lasting and loads_for_others(ratios, found.rank, found.effect, places))
            and not is_by_chance(ratios, found, over)
        )
    if found.timing == "rest":
        return _stalls_by_itself(ratios, found)
    # Where many look as slow, as after work was dealt out anew, its own past explains most of them at the
    # least cost. Ranks at its place are looked at last but one: those that rose with it are taken as seen.
    return not (
        (_others_may_have_changed(ratios, found) and not _changed_itself(ratios, found))
        or is_shared_by_role(ratios, found)
        or waits_least(ratios, found) is False
        or has_more_work(ratios, found)
        or is_class(ratios, found)
        or is_one_of_too_many(ratios, found, places)
        or is_one_of_equals(ratios, found, places)
        or rose_with_its_place(ratios, found, places)
        or is_dealt_anew(ratios, found)
    )


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


def _stalls_by_itself(ratios: Ratios, found: Candidate) -> bool:
    """Return whether a rank does more than it did besides what it reports, for good, and waits least.

    What is not reported may be many things: saving takes some steps, and a rank that waits in a pipeline
    makes no other rank wait.
    """
    lasts = float(np.nanmax(ratios.history.last("ts", 1))) - found.onset.at
    if found.steps < REST_STEPS or lasts < REST_SECONDS or found.recent < HALF * found.size:
        return False
    before, since = _before_and_since(ratios, "rest", found)
    work = float(nan_median(ratios.history.last("compute", found.steps).ravel()))
    rose = float(nan_median(since) - nan_median(before)) >= HALF * found.size * work
    return rose and waits_least(ratios, found) is True


def _before_and_since(ratios: Ratios, series: str, found: Candidate) -> tuple[Floats, Floats]:
    """Return a series of the rank in the steps before its onset and since then."""
    values = ratios.history.columns(series, found.steps + LOOK_BEFORE, found.rank)
    return values[: -found.steps], values[-found.steps :]


def _others_may_have_changed(ratios: Ratios, found: Candidate) -> bool:
    """Return whether only its own past can show that the rank changed: nothing holds the ranks together, many
    look as slow, or it was quicker than its peers and is as quick as they are now."""
    if ratios.asynchronous or _is_one_of_many(ratios, found):
        return True
    return not found.lasting and over_peers(ratios, found) < HALF * found.size


def _is_one_of_many(ratios: Ratios, found: Candidate) -> bool:
    """Return whether a good part of its role looks as slow: they may be slower or the others faster, which
    only their own past shows.
    """
    role = ratios.comparison.groups.index == ratios.comparison.groups.index[found.rank]
    alike = found.effect[role] >= HALF * found.size
    return not found.lasting and alike.size >= FEW and bool(np.mean(alike) >= _MANY)


def _changed_itself(ratios: Ratios, found: Candidate) -> bool:
    before, since = _before_and_since(ratios, "v", found)
    if np.isfinite(before).sum() < LEAST_OWN_PAST:
        return False
    return bool(nan_median(since) - nan_median(before) >= HALF * found.size)
