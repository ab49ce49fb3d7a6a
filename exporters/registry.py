"""The collectors of a node, in the order they are read."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from exporters.collector import Collector
from exporters.dumps.collector import DumpsCollector
from exporters.host.boot import BootCollector
from exporters.host.clock import ClockCollector
from exporters.host.infiniband import InfinibandCollector
from exporters.host.kmsg import KmsgCollector
from exporters.host.nic import NetCollector, pci_devices
from exporters.host.proc import HostCollector
from exporters.host.tcp_delay import TcpDelayCollector
from exporters.nccl.collector import NcclCollector
from exporters.nvml.collector import NvmlCollector
from exporters.nvml.gpu_release import released
from exporters.scrape.collector import ScrapeCollector
from exporters.steps import StepsCollector


def _boot_seconds() -> float:
    # Like the time stamps of the kernel log, this clock stops in suspend; CLOCK_BOOTTIME does not.
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def collectors(
    listen: Sequence[str],
    release: Path | None = None,
    *,
    scrape: Sequence[str] = (),
    nccl: Sequence[str] = (),
    node: str = "",
) -> list[Collector]:
    """Return all collectors.

    ``listen`` are the addresses for the training hook, ``scrape`` URLs of metrics, ``nccl`` the folders of
    NCCL Inspector, whose files ``node`` may name as well as the host's name, and of the flight recorder.
    While the file ``release`` requests it, no GPU device is held open; with None they always are. Raises
    ``OSError`` when an address cannot be bound.
    """
    nvml = NvmlCollector() if release is None else NvmlCollector(released=partial(released, release))
    return [
        StepsCollector(listen, nvml.gpu_uuids),
        # Before the collectors that read the same columns themselves, and take precedence.
        ScrapeCollector(scrape),
        NcclCollector(nccl, [node]),
        DumpsCollector(nccl),
        nvml,
        HostCollector(),
        TcpDelayCollector(),
        ClockCollector(),
        BootCollector(),
        NetCollector(),
        InfinibandCollector(),
        # After NVML, which provides the PCI address of each GPU.
        KmsgCollector(nvml.gpu_indices, _boot_seconds, nic_names=pci_devices),
    ]
