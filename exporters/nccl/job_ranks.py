"""Which rank of its job a process is, from the communicators that it has used.

Inspector numbers ranks within a communicator. Only that of all ranks of the job numbers them as the job does.
"""

from collections.abc import Sequence

from exporters.nccl.rank_steps import RankSteps

# Seconds without an operation after which a process is over where a later one works. Chosen: longer than most
# saves, in which a rank issues none while others do.
OVER_SECONDS = 60.0


def working(processes: Sequence[RankSteps]) -> list[RankSteps]:
    """Return the processes of the present attempt: those of an earlier one ended before others began."""
    if not processes:
        return []
    newest = max(processes, key=lambda one: one.first)
    return [one for one in processes if one.last >= newest.first or not _replaced(one, newest)]


def job_communicator(processes: Sequence[RankSteps]) -> str | None:
    """Return the id of the communicator of all ranks of a job, None where its processes show none.

    All of them are in it, and none is in one that has more ranks or is on more nodes: of two nodes with a
    tensor-parallel group each, the groups that join them show that neither is the job.
    """
    seen = [one for process in processes for one in process.members.values()]
    ranks, nodes = max((one.ranks for one in seen), default=0), max((one.nodes for one in seen), default=0)
    for id_, one in processes[0].members.items() if processes else ():
        members = [process.members.get(id_) for process in processes]
        numbers = {member.rank for member in members if member is not None}
        if (one.ranks, one.nodes) == (ranks, nodes) and len(numbers) == len(processes):
            return id_
    return None


def _replaced(one: RankSteps, newest: RankSteps) -> bool:
    return newest.last > one.last + OVER_SECONDS or one.members.keys().isdisjoint(newest.members)
