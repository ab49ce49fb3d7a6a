"""The exporter's GPU child with fixture devices in NVML's place.

Arguments: the number of GPUs, then ``index:behaviour[:file]``, where the behaviour is ``hang``, ``late`` or
``once`` (hangs until ``file`` exists, which it then makes).
"""

import sys
import time
from pathlib import Path

from exporters.nvml_child import NO_DRIVER, serve


class FixtureGpus:
    def __init__(self, count, behaviours):
        self._count = count
        self._behaviours = behaviours

    def count(self):
        return self._count

    def identity(self, index):
        return {"pci_bus_id": f"00000000:{0x3B + index:02X}:00.0", "uuid": f"GPU-{index}"}

    def read(self, index, *, slow):
        kind, _, argument = self._behaviours.get(index, "").partition(":")
        if kind == "hang" or (kind == "once" and not Path(argument).exists()):
            if argument:
                Path(argument).touch()
            time.sleep(3600)
        if kind == "late":
            time.sleep(0.5)
        if kind == "die":
            sys.exit(1)
        values = {"gpu.power_watts": 400.0 + index, "gpu.throttle_reasons": 0}
        return values | ({"gpu.ecc.corrected_total": 7} if slow else {})


if __name__ == "__main__":
    if sys.argv[1] == "none":
        sys.exit(NO_DRIVER)
    behaviours = dict(argument.split(":", 1) for argument in sys.argv[2:])
    gpus = FixtureGpus(int(sys.argv[1]), {int(i): b for i, b in behaviours.items()})
    serve(gpus, sys.stdin, sys.stdout, time.monotonic)
