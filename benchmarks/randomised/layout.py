"""Where the ranks of a job stand: parallel coordinates, nodes, and which nodes are slower by design."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.randomised.ranges import chance, log_uniform, pick

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MODELS = ("NVIDIA-H100-80GB", "NVIDIA-A100-80GB")


@dataclass(frozen=True, slots=True)
class Layout:
    """Parallel degrees of a job. ``tensor_data_pipe``: ranks go tp, dp, pp (Megatron-LM), else tp, pp, dp."""

    dp: int
    pp: int
    tp: int
    ep: int
    gpus_per_node: int
    tensor_data_pipe: bool

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return self.dp * self.pp * self.tp


class Places(NamedTuple):
    """Coordinates of every rank, and the rank at every (dp, pp, tp)."""

    d: Ints
    p: Ints
    t: Ints
    e: Ints
    node: Ints
    local: Ints
    at: Ints


@dataclass(frozen=True, slots=True)
class Machines:
    """Speed classes of nodes that are no fault: a second GPU model, or a lower power limit.

    Node ``n`` belongs to the class when ``n % every == 0``; ``slower`` multiplies its compute.
    """

    every: int
    slower: float
    is_model: bool
    label_known: bool


def draw_layout(rng: np.random.Generator, most_ranks: int) -> Layout:
    """Draw a job of 8 to ``most_ranks`` ranks, with at least two data-parallel replicas.

    Degrees are those of published jobs: tensor 1-8 inside a node, pipeline 1-16 (Megatron-LM, Llama 3).
    """
    target = log_uniform(rng, 8, most_ranks)
    gpus = pick(rng, (4, 8, 16), (0.2, 0.7, 0.1))  # assumption: HGX boards of 8 prevail
    tp = pick(rng, (1, 2, 4, 8), (0.5, 0.15, 0.15, 0.2))  # assumption: pure data parallelism is as common
    pp = pick(rng, (1, 2, 4, 8, 16), (0.6, 0.1, 0.15, 0.1, 0.05))
    tp = min(tp, gpus)
    # Assumption: a seventh of the jobs have too few replicas to compare with.
    least = pick(rng, (2, 5), (0.15, 0.85))
    while tp * pp * least > target and tp * pp > 1:
        tp, pp = (tp, pp // 2) if pp > 1 else (tp // 2, pp)
    dp = max(2, round(target / (tp * pp)))
    experts = [e for e in (2, 4, 8, 16) if dp % e == 0 and dp // e >= 2]
    # Assumption: a quarter are mixtures of experts; two expert groups at least, or a hot expert and a slow
    # rank are the same in every row.
    ep = pick(rng, experts) if experts and chance(rng, 0.25) else 1
    return Layout(dp, pp, tp, ep, gpus, chance(rng, 0.7))


def draw_machines(rng: np.random.Generator, nodes: int) -> Machines | None:
    """Draw a second speed class in a fifth of the jobs with four nodes or more (assumption)."""
    if nodes < 4 or not chance(rng, 0.2):
        return None
    # Two nodes at least are of each class: a class of one is a slow node in every row.
    every = int(rng.integers(2, min(4, nodes // 2) + 1))
    if chance(rng, 0.5):
        # H100 against A100 in training: up to about 2 (vendor figures); 1.05 covers bins of one model.
        return Machines(every, log_uniform(rng, 1.05, 2.0), True, chance(rng, 0.7))
    # Power limits of 70-90 % cost 2-15 % of throughput (assumption after published power sweeps).
    return Machines(every, log_uniform(rng, 1.02, 1.15), False, False)


def places(layout: Layout) -> Places:
    """Return the coordinates of all ranks of ``layout``."""
    rank = np.arange(layout.ranks)
    t, above = rank % layout.tp, rank // layout.tp
    if layout.tensor_data_pipe:
        d, p = above % layout.dp, above // layout.dp
    else:
        p, d = above % layout.pp, above // layout.pp
    at = np.empty((layout.dp, layout.pp, layout.tp), np.int64)
    at[d, p, t] = rank
    return Places(d, p, t, d % layout.ep, rank // layout.gpus_per_node, rank % layout.gpus_per_node, at)


def slower_class(machines: Machines | None, node: Ints) -> npt.NDArray[np.bool_]:
    """Return which of the nodes are of the slower class."""
    return np.zeros(len(node), bool) if machines is None else node % machines.every == 0


def coords_of(layout: Layout, where: Places, rank: int) -> dict[str, int]:
    """Return the ``coords`` of a rank; dimensions of size one are left out, but for ``dp``."""
    known: dict[str, tuple[int, Any]] = {
        "dp": (2, where.d),
        "pp": (layout.pp, where.p),
        "tp": (layout.tp, where.t),
        "ep": (layout.ep, where.e),
    }
    return {name: int(index[rank]) for name, (size, index) in known.items() if size > 1}
