"""The one line that names a finding: at most 120 characters, one template per kind."""

from collections.abc import Sequence

from alerts.kinds import kind_of
from slowrank.telemetry import Subject

# Characters (chosen: one line of a terminal or of a chat).
MAX_TITLE = 120

# Places that only their ranks describe.
_OF_RANKS = ("Likely machine", "Group of ranks")

# Nodes that are named of a group (chosen: as many as are evicted together).
_MOST_NODES = 8


def title(
    kind: str,
    subject: Subject,
    *,
    ratio: float | None = None,
    peers: int | None = None,
    peer: str = "peer",
    own_past: bool = False,
    hypothesis: str | None = None,
    awaited: Sequence[Subject] = (),
    stops: int = 1,
    by_nodes: bool = False,
    model: str | None = None,
    nodes: str | None = None,
    single_steps: bool = False,
    some: tuple[int, int] | None = None,
) -> str:
    """Return the title, cut to 120 characters and without control characters.

    A slow job without a slow machine is named by its likeliest ``hypothesis``, where that has a template.
    ``peer`` is what ``peers`` counts; ``own_past``: it is slower than it was, and not than they are.
    ``awaited``: the ranks that a stopped job waits for, ascending; ``stops``: how often it has stopped;
    ``by_nodes``: only its nodes show that.
    ``model``, ``nodes``: the GPU model, or the nodes, that set a slow group of ranks apart;
    ``single_steps``: it is slow in these. ``some``: of how many ranks it is true, of how many on the node.
    """
    row, why = kind_of(kind), kind_of(hypothesis or "")
    if row.no_culprit and why.reported_as != "finding" and why.title is not None:
        row = why
    template = row.title or "{place}: " + kind.replace("{", "").replace("}", "")
    text = template.format(
        place=place(subject) if template.startswith("{place}") else place_in_text(subject),
        group=place(subject) if subject.coords else f"A group of ranks of job {subject.job_id}",
        model="one GPU model" if model is None else model,
        nodes="some nodes" if nodes is None else nodes,
        ratio="?x" if ratio is None else f"{ratio:.2f}x",
        peers="it was" if own_past else _count(peers, peer),
        missing=_missing(awaited, by_nodes=by_nodes),
        some="" if some is None else f" of {some[0]} of its {some[1]} ranks",
        again=", again and again" if single_steps else f" {stops} times" if stops > 1 else "",
    )
    text = "".join(c if c.isprintable() else " " for c in text).replace(" ?x slower", " slower")
    return text if len(text) <= MAX_TITLE else text[: MAX_TITLE - 1] + "…"


def _missing(awaited: Sequence[Subject], *, by_nodes: bool) -> str:
    if awaited:
        return f"{_ranks(awaited)} did not arrive"
    return "its GPUs spin and do no work" if by_nodes else "no steps"


def _ranks(subjects: Sequence[Subject]) -> str:
    """Return ranks of one node in words: ``rank 7``, ``ranks 8-15 of gpu-0423``, ``3 ranks of gpu-0423``."""
    ranks = [s.rank or 0 for s in subjects]
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    in_a_row = ranks == list(range(ranks[0], ranks[-1] + 1))
    named = f"ranks {ranks[0]}-{ranks[-1]}" if in_a_row else f"{len(ranks)} ranks"
    return f"{named} of {subjects[0].node}"


def _count(peers: int | None, peer: str) -> str:
    if not peers:
        return "its peers"
    return f"{peers} {peer}s" if peers > 1 else f"1 {peer}"


def place(subject: Subject) -> str:
    """Return how people call the subject: ``gpu-0423 GPU 5 (rank 3389)``."""
    return _PLACES[subject.type](subject) if subject.type in _PLACES else _named(subject)


def place_in_text(subject: Subject) -> str:
    """Return ``place`` as it reads inside a sentence: ``the likely machine of ranks 8-15 of job j1``."""
    name = place(subject)
    if subject.node and name.startswith(subject.node):
        return name
    # Names and abbreviations (GPU, NIC) keep their letters.
    in_text = f"{name[0].lower()}{name[1:]}" if name[1:2].islower() else name
    return f"the {in_text}" if name.startswith(_OF_RANKS) else in_text


def _on_node(s: Subject) -> str:
    if not s.node and s.rank is not None:
        return f"Rank {s.rank} of job {s.job_id}"
    words = [s.node or ""]
    words += [f"GPU {s.gpu_index}"] if s.gpu_index is not None else []
    words += [f"(rank {s.rank})"] if s.rank is not None else []
    return " ".join(w for w in words if w) or _named(s)


def _node(s: Subject) -> str:
    if s.ranks is not None:
        return f"Likely machine of ranks {s.ranks} of job {s.job_id}"
    return s.node or _named(s)


def _job(s: Subject) -> str:
    if s.coords and set(s.coords) != {"pp"}:
        return f"Group {', '.join(f'{k}={v}' for k, v in sorted(s.coords.items()))} of job {s.job_id}"
    if s.coords:
        return f"Stage {s.coords['pp']} of job {s.job_id}"
    return f"Job {s.job_id}"


def _nic(s: Subject) -> str:
    return f"{s.node or ''} {s.nic or 'NIC'}{f'/{s.port}' if s.port else ''}".strip()


def _link(s: Subject) -> str:
    return f"Link {s.nic or ''} {s.port or '?'}–{s.peer_port or '?'}"


def _rack(s: Subject) -> str:
    return f"Rack {s.rack}"


def _switch(s: Subject) -> str:
    if s.rail is None:
        return f"Switch {s.switch}"
    return f"Rail {s.rail}" + (f" of switch {s.switch}" if s.switch else "")


def _site(s: Subject) -> str:
    return f"Cluster {s.cluster}"


def _named(s: Subject) -> str:
    return f"{s.type} {s.rail or s.rack or s.node or s.cluster}"


def _group(s: Subject) -> str:
    shared = ", ".join(f"{k}={v}" for k, v in sorted((s.coords or {}).items()))
    if s.node and shared:
        family = _family(s)
        return f"{s.node} {family[0].lower()}{family[1:]} {shared}"
    if s.ranks or not shared:
        which = f"ranks {s.ranks}" if s.ranks else "ranks"
        return f"Group of {which} of job {s.job_id}" + (f" on {s.node}" if s.node else "")
    words = (s.node, _family(s), shared, f"of job {s.job_id}")
    return " ".join(word for word in words if word)


def _family(s: Subject) -> str:
    """Return what the ranks are that have these coordinates in common."""
    coords = s.coords or {}
    if "tp" not in coords:
        # Without stages a replica is one tensor-parallel group, if it is divided at all.
        return "Replica" if coords.keys() == {"dp"} else "Tensor-parallel group"
    return "Pipeline" if coords.keys() == {"dp", "tp"} else "Group"


def places(subjects: Sequence[Subject]) -> str:
    """Return how several GPUs are called in a sentence: ``gpu-0423 GPUs 4, 5 (ranks 3388, 3389)``."""
    if len(subjects) == 1:
        return place_in_text(subjects[0])
    node, job = subjects[0].node, subjects[0].job_id
    if nodes := sorted({s.node for s in subjects if s.node} if any(s.node != node for s in subjects) else ()):
        more = f" and {len(nodes) - _MOST_NODES} more" if len(nodes) > _MOST_NODES else ""
        return f"{len(subjects)} ranks of job {job} on {', '.join(nodes[:_MOST_NODES])}{more}"
    indices = [str(s.gpu_index) for s in subjects if s.gpu_index is not None]
    ranks = ", ".join(str(s.rank) for s in subjects)
    if not node or len(indices) < len(subjects):
        return f"ranks {ranks} of job {job}" + (f" on {node}" if node else "")
    return f"{node} GPUs {', '.join(indices)} (ranks {ranks})"


_PLACES = {
    "gpu": _on_node,
    "rank": _on_node,
    "group": _group,
    "node": _node,
    "exporter": lambda s: s.node or _named(s),
    "telemetry": lambda s: s.node or _site(s),
    "job": _job,
    "nic": _nic,
    "link": _link,
    "rack": _rack,
    "switch": _switch,
    "site": _site,
}
