"""How long GPUs are waited for, and the state of each one's reads."""

from dataclasses import dataclass

SOFT_SECONDS = 0.3
"""How long a tick waits for the readings of its GPUs; later answers are the next tick's."""
STALL_SECONDS = 2.0
"""For so long a child may owe the answers of all its GPUs: the longest read that is provided for."""
HARD_SECONDS = 30.0
"""How long one GPU may owe its answer until its child is killed: longer than any that answered at all, which
took up to 2 s, and no other GPU waits for it."""
START_SECONDS = 10.0
"""How long a new child may take until it reports how many GPUs there are."""
PAUSE_SECONDS = (30.0, 300.0)
"""For how long a GPU is not asked after its child was killed: at first, and at most."""
RETRY_SECONDS = 5.0
RETRY_WITHOUT_DRIVER_SECONDS = 600.0
"""Until another child is started where one ended by itself; a driver that is not there seldom comes."""
RENEW_SECONDS = 600.0
"""How often GPUs are counted and their handles opened anew, by a new child."""
SLOW_READS = 3
"""So many reads beyond ``SOFT_SECONDS`` in a row, and a GPU is read by a child of its own."""
PROMPT_SECONDS = 60.0
"""A GPU read by a child of its own shares one again after so long without a slow read."""
SLOW_EVERY = 5
"""Every GPU has its slow set (ECC, PCIe, NVLink, remapped rows) read once in so many ticks."""
MAX_CHILDREN = 4
"""Into which GPUs are divided: at 13 MB of their own each, they stay within the 150 MB of an exporter. One
that stalls with several GPUs is divided again."""
ABANDONED_PER_GPU = 2
"""Killed children in a call that cannot be interrupted; a GPU with more of them is asked no more."""


@dataclass(slots=True)
class GpuState:
    """What is known of reading one GPU: how long the last read took, since when it owes an answer."""

    seconds: float = 0.0
    unanswered: float | None = None
    full_at: int = 0
    slow_reads: int = 0
    slow_at: float = 0.0
    group: int = 0
    """GPUs of one group share a child; those of group 0 are all that need none of their own."""
    retry_at: float = 0.0
    pause: float = PAUSE_SECONDS[0]

    @property
    def apart(self) -> bool:
        """Whether it is read apart from most others."""
        return self.group != 0
