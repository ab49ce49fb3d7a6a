"""Makes the decision core of a job from what its rows report of ranks."""

from collections.abc import Iterable, Mapping

import numpy as np

from detectors.peers.peers import MIN_PEERS
from detectors.peers.places.positions import Positions
from detectors.peers.places.roles import roles_from_coords
from detectors.peers.replicas import Replicas
from detectors.peers.shards import Shards
from detectors.peers.shared_work import SharedWork
from detectors.straggler.config import StragglerConfig
from detectors.straggler.core import DecisionCore, Ints
from detectors.straggler.slow_groups import GroupFamilies
from detectors.straggler.step_detector import StragglerDetector
from slowrank.telemetry import UNKNOWN_NODE
from streams.job.likely_nodes import likely_nodes
from streams.job.rows.step_rows import COORDS, Identity


def make_core(
    roster: tuple[int, ...], identities: Mapping[int, Identity], config: StragglerConfig
) -> DecisionCore:
    """Return a core for the ranks of ``roster``; roles come from coordinates where these show the stage
    of every rank."""
    places = [dict(identities[r].coords) for r in roster]
    nodes, tensor_groups = nodes_of(roster, identities), tensor_groups_of(roster, identities)
    unnamed = all(identities[r].node == UNKNOWN_NODE for r in roster)
    coords = {c: np.array([p.get(c, -1) for p in places], dtype=np.intp) for c in COORDS}
    replicas, batch_groups = Replicas.from_coords(coords, nodes), batch_groups_of(tensor_groups, coords)
    if sum("pp" in p or "dp" in p for p in places) < len(places) or not shows_stages(roster, identities):
        numbers = np.array(roster, dtype=np.intp)
        return StragglerDetector(
            len(roster),
            None,
            config,
            replicas=replicas,
            nodes=nodes,
            likely_nodes=unnamed,
            tensor_groups=tensor_groups,
            batch_groups=batch_groups,
            shared_work=SharedWork.from_numbers(numbers, nodes),
            positions=Positions.from_numbers(numbers, nodes),
        )
    return StragglerDetector(
        len(roster),
        roles_from_coords(coords, [identities[r].model for r in roster]),
        config,
        replicas=replicas,
        shards=Shards.from_coords(coords, nodes),
        nodes=nodes,
        likely_nodes=unnamed,
        tensor_groups=tensor_groups,
        batch_groups=batch_groups,
        shared_work=SharedWork.from_coords(coords, nodes),
        families=GroupFamilies.from_coords(coords, nodes),
        positions=Positions.from_coords(coords, nodes),
    )


def shows_stages(roster: Iterable[int], identities: Mapping[int, Identity]) -> bool:
    """Return whether coordinates rule out pipeline stages that they do not name.

    They do where they have ``pp``, or where each rank has its own: nothing is left then that a stage could
    differ in.
    """
    coords = [identities[rank].coords for rank in roster]
    return any(name == "pp" for at in coords for name, _ in at) or len(set(coords)) == len(coords)


def batch_groups_of(tensor_groups: Ints, coords: Mapping[str, Ints]) -> Ints:
    """Number the ranks that work on one batch and are compared with each other where batches vary: those of
    one tensor-parallel group, which do the same, or of one replica where such a group is small; -1 where
    neither is known."""
    ranks = tensor_groups.size
    sizes = np.bincount(tensor_groups + 1, minlength=1)[tensor_groups + 1]
    small = (tensor_groups < 0) | (sizes <= MIN_PEERS)
    # Ranks that differ in cp have a part of each sequence. Numbered above the tensor-parallel groups.
    return np.where(small & (coords["dp"] >= 0), ranks + coords["dp"], tensor_groups)


def nodes_of(roster: tuple[int, ...], identities: Mapping[int, Identity]) -> Ints:
    """Number the nodes. Where rows name none, ranks share those that they likely run on; a rank has one of
    its own where nothing tells, or where the rows of others name nodes."""
    names = [identities[r].node for r in roster]
    known = {name: i for i, name in enumerate(dict.fromkeys(names))}
    if set(known) != {UNKNOWN_NODE}:
        # Below zero, where no known node is numbered.
        alone = [-1 - i if name == UNKNOWN_NODE else known[name] for i, name in enumerate(names)]
        return np.array(alone, dtype=np.intp)
    likely = likely_nodes({r: identities[r] for r in roster}, len(roster))
    first = (likely.first_of(rank) for rank in roster)
    return np.array([-1 - i if f is None else f for i, f in enumerate(first)], dtype=np.intp)


def tensor_groups_of(roster: tuple[int, ...], identities: Mapping[int, Identity]) -> Ints:
    """Number the sets of ranks that differ in ``tp`` alone; -1 where a rank is alone, its group is on several
    nodes, or more distinguishes its members than coordinates do."""
    members: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for i, rank in enumerate(roster):
        coords = identities[rank].coords
        rest = tuple(at for at in coords if at[0] != "tp")
        if len(rest) < len(coords):
            members.setdefault(rest, []).append(i)
    groups = np.full(len(roster), -1, dtype=np.intp)
    for number, group in enumerate(members.values()):
        own = [identities[roster[i]] for i in group]
        whole = len({at.coords for at in own}) == len(group) >= 2 and len({at.node for at in own}) == 1
        groups[group] = number if whole else -1
    return groups
