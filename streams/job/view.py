"""What a suspicion of a job needs to know of the job: its ranks, and the nodes and GPUs they run on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from detectors.straggler import StragglerDetector
from slowrank.telemetry import UNKNOWN_NODE, Subject
from streams.step_rows import Identity

Topic = Literal[
    "compute",
    "data",
    "rest",
    "intermittent",
    "stage",
    "workload",
    "input",
    "unmeasured",
    "network",
    "missing",
    "hang",
    "loss",
    "grad_norm",
    "group",
    "transfer",
]
Key = tuple[Topic, int]
"""What a suspicion of a job is about, and the rank or stage concerned (-1 = the job)."""


@dataclass(frozen=True, slots=True)
class JobView:
    """What a suspicion needs to know of its job."""

    cluster: str
    job_id: str
    attempt: int
    roster: tuple[int, ...]
    identities: Mapping[int, Identity]
    detector: StragglerDetector

    @property
    def nodes(self) -> int:
        """Number of nodes the job runs on."""
        return len({self.identities[r].node for r in self.roster})

    def ranks_on_node(self, rank: int) -> int:
        """Number of the job's ranks on the node of ``rank``; 0 when the node is not known."""
        node = self.node(rank)
        return 0 if node is None else sum(self.identities[r].node == node for r in self.roster)

    def node(self, rank: int) -> str | None:
        """Return the node of ``rank``, or None when its rows named none."""
        node = self.identities[rank].node
        return None if node == UNKNOWN_NODE else node

    def tensor_group(self, rank: int) -> tuple[int, ...]:
        """Return where in the roster the ranks stand that differ from ``rank`` in ``tp`` alone, itself among
        them; nothing where it is alone, they are on several nodes, or more tells them apart than ``coords``.
        """
        own = dict(self.identities[rank].coords)
        if own.pop("tp", None) is None:
            return ()
        places = [dict(self.identities[r].coords) for r in self.roster]
        shards = [place.pop("tp", None) for place in places]
        members = tuple(i for i, place in enumerate(places) if place == own and shards[i] is not None)
        nodes = {self.node(self.roster[i]) for i in members}
        whole = len(members) == len({shards[i] for i in members}) >= 2 and len(nodes) == 1
        return members if whole else ()

    def role(self, group: int) -> dict[str, str | int]:
        """Return what the ranks of a group of peers share and not all of the job do: model, coordinates."""
        member = self.detector.stages.index == group
        inside = [self.identities[self.roster[i]] for i in np.flatnonzero(member)]
        outside = [self.identities[self.roster[i]] for i in np.flatnonzero(~member)]
        shared: dict[str, str | int] = {}
        for name in ("gpu_model", "pp", "ep"):
            value = _property(inside[0], name)
            own = all(_property(i, name) == value for i in inside)
            if value is not None and own and any(_property(i, name) != value for i in outside):
                shared[name] = value
        return shared

    def role_name(self, group: int) -> str:
        """Return the role in words, ``pp=3``; empty where nothing is known to tell the groups apart."""
        return ", ".join(f"{name}={value}" for name, value in self.role(group).items())

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

    def job(self, coords: dict[str, int] | None = None) -> Subject:
        """Return the job itself, or a part of it named by ``coords``."""
        return Subject(
            type="job", cluster=self.cluster, job_id=self.job_id, attempt=self.attempt, coords=coords
        )


def _property(identity: Identity, name: str) -> str | int | None:
    if name == "gpu_model":
        return identity.model or None
    return next((at for dimension, at in identity.coords if dimension == name), None)
