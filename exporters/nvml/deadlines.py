"""Deadlines of reads from GPUs, and the state of the reads of one GPU.

NVML's calls took up to 2 s on GPUs that were busy or resetting and answered at all; others never return.
"""

from dataclasses import dataclass

# How long a tick waits for its GPUs, within the 0.5 s of a collector; later answers count in the next.
SOFT_SECONDS = 0.3
# After so long without an answer from any of its GPUs a child counts as stalled: the longest good read.
STALL_SECONDS = 2.0
# After so long without an answer from one GPU its child is killed. Chosen far above the longest good read, as
# no other GPU waits for it.
HARD_SECONDS = 30.0
# Limit on the start of a child, until it reports the number of GPUs: NVML takes seconds without persistence
# mode. Chosen.
START_SECONDS = 10.0
# How long a GPU is left alone after its child was killed, at first and at most; doubles each time. Chosen: a
# kill may leave a stuck process behind, while a GPU that was reset is read again within a minute.
PAUSE_SECONDS = (30.0, 300.0)

# Pause after a child that ended by itself. Chosen: five missed ticks; a driver is seldom installed later.
RETRY_SECONDS = 5.0
RETRY_WITHOUT_DRIVER_SECONDS = 600.0
# How often a new child counts the GPUs and opens their handles anew. Chosen: a change that /proc does not
# show is found within ten minutes.
RENEW_SECONDS = 600.0
# After so many reads in a row above ``SOFT_SECONDS`` a GPU gets a child of its own. Chosen: one or two slow
# reads are usual while a job starts.
SLOW_READS = 3
# After so long without a slow read a GPU shares a child again. Chosen: long against ``SLOW_READS`` ticks.
PROMPT_SECONDS = 60.0
# The slow set (ECC, PCIe, NVLink, remapped rows) is read once in so many ticks. Chosen: bounds the 40 ms of
# PCIe throughput to 1 % of a tick on average.
SLOW_EVERY = 5
# Most children among which GPUs are divided: at 13 MB each, the exporter stays within 150 MB. A child that
# stalls with several GPUs is divided again.
MAX_CHILDREN = 4
# A GPU with more killed children that cannot end, each in an uninterruptible call, is not read any more.
# Chosen: bounds the processes that pile up.
ABANDONED_PER_GPU = 2


@dataclass(slots=True)
class GpuState:
    """State of the reads of one GPU: seconds of the last one, and when the unanswered request was sent."""

    seconds: float = 0.0
    unanswered: float | None = None
    full_at: int = 0
    slow_reads: int = 0
    slow_at: float = 0.0
    group: int = 0
    """GPUs of one group share a child; group 0 are those without trouble."""
    retry_at: float = 0.0
    pause: float = PAUSE_SECONDS[0]

    @property
    def apart(self) -> bool:
        """Whether it is read by another child than the GPUs without trouble."""
        return self.group != 0
