"""The exporter's GPU child with fixture devices in NVML's place.

Arguments: how many GPUs there are, or a file that lists their numbers, then ``index:behaviour[:argument]``:
``hang``, ``late`` (0.5 s), ``slow:SECONDS``, ``serial:SECONDS`` (and others that are so wait), ``die``,
``once:FILE`` (hangs until it exists, and makes it), ``gone:FILE`` (while it exists), and ``lock`` (hangs, and
with it every other GPU that this process reads). The file in FIXTURE_DEVICES stands for /dev/nvidia*: it is
held open.
"""

import os
import sys
import threading
import time
from pathlib import Path

from exporters.nvml.child import serve
from exporters.nvml.device import GpuGone
from exporters.nvml.process import NO_DRIVER


class FixtureGpus:
    def __init__(self, uuids, behaviours):
        self._uuids = uuids
        self._behaviours = behaviours
        self._lock = threading.Lock()

    def count(self):
        return len(self._uuids)

    def identity(self, index):
        number = self._uuids[index]
        names = {"pci_bus_id": f"00000000:{0x3B + number:02X}:00.0", "uuid": f"GPU-{number}"}
        # As boards of consumers, the last GPU has no serial number.
        return names if index and index == len(self._uuids) - 1 else names | {"serial": f"16540{number}"}

    def read(self, index, *, slow):
        kind, _, argument = self._behaviours.get(index, "").partition(":")
        with self._lock:
            if kind in ("lock", "serial"):
                time.sleep(float(argument or 3600))
        if kind == "hang" or (kind == "once" and not Path(argument).exists()):
            if argument:
                Path(argument).touch()
            time.sleep(3600)
        if kind in ("late", "slow"):
            time.sleep(float(argument or 0.5))
        if kind == "die":
            os._exit(1)
        if kind == "gone" and Path(argument).exists():
            raise GpuGone
        values = {"gpu.power_watts": 400.0 + self._uuids[index], "gpu.throttle_reasons": 0}
        return values | ({"gpu.ecc.corrected_total": 7} if slow else {})


def main(count, *arguments):
    if count == "none":
        sys.exit(NO_DRIVER)
    # "8", or a file that lists the GPUs there are: "0 1 2 4".
    uuids = [*range(int(count))] if count.isdecimal() else [int(n) for n in Path(count).read_text().split()]
    behaviours = dict(argument.split(":", 1) for argument in arguments)
    gpus = FixtureGpus(uuids, {int(i): b for i, b in behaviours.items()})
    with Path(os.environ.get("FIXTURE_DEVICES", os.devnull)).open():
        serve(gpus, sys.stdin, sys.stdout, time.monotonic)
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
