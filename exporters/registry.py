"""The collectors of a node, in the order they are read."""

import time
from collections.abc import Sequence

from exporters.collector import Collector
from exporters.host import HostCollector
from exporters.infiniband import InfinibandCollector
from exporters.kmsg import KmsgCollector
from exporters.nic import NetCollector
from exporters.nvml import NvmlCollector
from exporters.steps import StepsCollector


def _boot_seconds() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def collectors(listen: Sequence[str]) -> list[Collector]:
    """Return all collectors; ``listen`` are the addresses for the training hook.

    Raises ``OSError`` when an address cannot be bound.
    """
    nvml = NvmlCollector()
    return [
        StepsCollector(listen),
        nvml,
        HostCollector(),
        NetCollector(),
        InfinibandCollector(),
        KmsgCollector(nvml.gpu_indices, _boot_seconds),
    ]
