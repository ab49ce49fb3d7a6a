"""What one attempt of a job tells about the next: where nothing but nodes that were replaced has changed."""

from dataclasses import dataclass

from detectors.peers.places.attempt_before import AttemptBefore
from slowrank.telemetry import UNKNOWN_NODE
from streams.job.rows.step_aligner import StepAligner


@dataclass(frozen=True, slots=True)
class Layout:
    """The ranks of a job, ascending, the node of each, and the world size that the job states (0: none)."""

    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    world_size: int = 0

    @classmethod
    def of(cls, ranks: tuple[int, ...], aligner: StepAligner) -> "Layout":
        """Return the layout that rows have shown so far."""
        return cls(ranks, tuple(aligner.identities[rank].node for rank in ranks), aligner.world_size)


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that has ended: its layout, and what its steps showed of its ranks."""

    layout: Layout
    learnt: AttemptBefore

    def known_in(self, now: Layout) -> AttemptBefore | None:
        """Return what it tells about the ranks of a later attempt; None where it has other ranks, or ranks
        were dealt to nodes anew: then who does the same work may be others."""
        was = self.layout
        if (was.ranks, was.world_size) != (now.ranks, now.world_size):
            return None
        if {*was.nodes, *now.nodes} == {UNKNOWN_NODE}:
            # A rank does the work of its number, wherever it runs.
            return self.learnt
        stayed = [a == b != UNKNOWN_NODE for a, b in zip(was.nodes, now.nodes, strict=True)]
        # A new node takes the ranks of one that has left.
        replaced = all(same or node not in was.nodes for same, node in zip(stayed, now.nodes, strict=True))
        # Chosen: of a job that goes on mostly elsewhere, what its ranks took is not known.
        return self.learnt.of_those(stayed) if replaced and 2 * sum(stayed) > len(stayed) else None
