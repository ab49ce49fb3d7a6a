"""A job as its detectors see it at one step: its ranks, where they run, and which of them are slow."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from detectors.straggler.core import DecisionCore, Ints, StepResult
from slowrank.telemetry import UNKNOWN_NODE, Subject, Suspicion
from streams.job.aspect import Aspect, Key
from streams.job.likely_nodes import MOST_GPUS, LikelyNodes, likely_nodes
from streams.job.rows.step_rows import Identity
from streams.open_suspicions import OpenSuspicions


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job at one step. ``roster``: its ranks, ascending; their places in it number them in arrays.

    ``core`` decides which ranks are slow, ``result`` is what it decided on this step. ``late`` are ranks
    without a row in this step that have sent others since. ``open`` are the open suspicions, to be read only.
    ``world_size`` is what the job states, 0 where it does not.
    """

    cluster: str
    job_id: str
    attempt: int
    roster: tuple[int, ...]
    identities: Mapping[int, Identity]
    core: DecisionCore
    open: OpenSuspicions[Key]
    result: StepResult = field(default_factory=StepResult)
    late: frozenset[int] = frozenset()
    world_size: int = 0

    @property
    def gpus(self) -> int:
        """Number of GPUs the job has: where only some of its ranks log, the others wait with them."""
        return max(len(self.roster), self.world_size)

    def standing(self, *aspects: Aspect) -> dict[Key, Suspicion]:
        """Return the open suspicions about some aspects."""
        return {key: self.open[key] for key in self.open if key[0] in aspects}

    @property
    def nodes(self) -> int:
        """Number of nodes the job runs on."""
        return len({self.identities[r].node for r in self.roster})

    def machines(self) -> dict[str, frozenset[int]]:
        """Return the ranks of each node that is known."""
        ranks: dict[str, set[int]] = {}
        for rank in self.roster:
            if (node := self.node(rank)) is not None:
                ranks.setdefault(node, set()).add(rank)
        return {node: frozenset(own) for node, own in ranks.items()}

    def ranks_on_node(self, rank: int) -> int:
        """Number of the job's ranks on the node of ``rank``; 0 when the node is not known."""
        node = self.node(rank)
        return 0 if node is None else sum(self.identities[r].node == node for r in self.roster)

    def ranks_likely_on_node(self, rank: int) -> int:
        """Number of ranks that likely share the node of ``rank``, in a row from a multiple of it on; 0 where
        rows name nodes, or nothing tells which they are."""
        likely = self._likely_nodes()
        return 0 if likely is None else likely.size_of(rank)

    def are_on_one_machine(self, ranks: Collection[int]) -> bool:
        """Return whether ``ranks`` are on one node, or likely are where rows name none: a job that fits on
        one machine is on one."""
        if (likely := self._likely_nodes()) is None:
            return len(nodes := {self.node(rank) for rank in ranks}) == 1 and None not in nodes
        if self.gpus <= MOST_GPUS:
            return True
        return len(first := {likely.first_of(rank) for rank in ranks}) == 1 and None not in first

    def _likely_nodes(self) -> LikelyNodes | None:
        """Return which ranks likely share a node; None where rows name nodes."""
        if any(self.node(r) is not None for r in self.roster):
            return None
        return likely_nodes({r: self.identities[r] for r in self.roster}, self.gpus)

    def node(self, rank: int) -> str | None:
        """Return the node of ``rank``, or None when its rows named none."""
        node = self.identities[rank].node
        return None if node == UNKNOWN_NODE else node

    def role(self, members: Ints) -> dict[str, str | int]:
        """Return what ``members`` (places) share and not all of the job do: model, coordinates. Nothing where
        as many others share all of it: that tells nobody who they are."""
        chosen = set(members.tolist())
        places = [self.identities[rank] for rank in self.roster]
        inside = [at for i, at in enumerate(places) if i in chosen]
        outside = [at for i, at in enumerate(places) if i not in chosen]
        shared: dict[str, str | int] = {}
        for name in ("gpu_model", "pp", "ep", "tp", "cp"):
            value = _property(inside[0], name)
            own = all(_property(i, name) == value for i in inside)
            if value is not None and own and any(_property(i, name) != value for i in outside):
                shared[name] = value
        alike = sum(all(_property(i, name) == value for name, value in shared.items()) for i in outside)
        return shared if alike < len(inside) else {}

    def role_name(self, members: Ints) -> str:
        """Return the role in words, ``pp=3``; empty where nothing is known to distinguish its members."""
        return ", ".join(f"{name}={value}" for name, value in self.role(members).items())

    def subject(self, rank: int) -> Subject:
        """Return the rank as a GPU where its node and index are known, else as a rank."""
        place, node = self.identities[rank], self.node(rank)
        return Subject(
            type="rank" if place.gpu_index is None or node is None else "gpu",
            cluster=self.cluster,
            node=node,
            gpu_index=place.gpu_index,
            rank=rank,
            local_rank=place.local_rank,
            coords=dict(place.coords) or None,
            job_id=self.job_id,
            attempt=self.attempt,
        )

    def machine(self, rank: int) -> Subject:
        """Return the node of ``rank``."""
        return Subject(type="node", cluster=self.cluster, node=self.node(rank), job_id=self.job_id)

    def job(self, coords: dict[str, int] | None = None) -> Subject:
        """Return the job itself, or a part of it named by ``coords``."""
        return Subject(
            type="job", cluster=self.cluster, job_id=self.job_id, attempt=self.attempt, coords=coords
        )


def spans(ranks: Collection[int]) -> str:
    """Return ranks in words.

    >>> spans([4, 1, 2, 3, 9])
    '1-4,9'
    """
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ",".join(f"{lo}" if lo == hi else f"{lo}-{hi}" for lo, hi in found)


def _property(identity: Identity, name: str) -> str | int | None:
    if name == "gpu_model":
        return identity.model or None
    return next((at for dimension, at in identity.coords if dimension == name), None)
