"""Who loads data for others: the first ranks of tensor-parallel groups, or those of one stage, do so for all
(Megatron-LM), and load longer than the rest from the start. That is their part, and no fault."""

import numpy as np
import numpy.typing as npt

from detectors.peers.places.place_mates import PlaceMates
from detectors.peers.places.roles import is_one_machine, is_regular
from detectors.peers.ratios import Ratios
from detectors.straggler.alternatives.position import MOST, is_position
from detectors.straggler.candidate import HALF

Floats = npt.NDArray[np.float64]


def loads_for_others(ratios: Ratios, rank: int, effect: Floats, places: PlaceMates) -> bool:
    """Return whether most of its stage, or most ranks at its position of the model or of other machines, have
    loaded for as long as ``rank`` from the start, by ``effect`` [ranks]."""
    loads = effect >= HALF * effect[rank]
    parts = (ratios.comparison.mates(rank), places.of(rank))
    if any(bool(part.any() and np.mean(loads[part]) >= MOST) for part in parts):
        return True
    if ratios.roles_known:
        stage = ratios.comparison.groups.index == ratios.comparison.groups.index[rank]
        return ratios.shards is not None and ratios.shards.explain(effect, rank, stage)
    is_stage = is_regular(loads) and not is_one_machine(effect, loads, ratios.nodes)
    return is_stage or is_position(ratios, rank, effect)
