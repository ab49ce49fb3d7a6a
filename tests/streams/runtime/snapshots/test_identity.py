import subprocess
import sys
from dataclasses import replace

import numpy as np

from streams.config.settings import Configs, Layer, Tuning
from streams.job.config import JobStageConfig
from streams.runtime.snapshots.identity import canonical, identity


def test_equal_settings_have_one_identity_in_every_process():
    """Hashes of texts differ between processes; the identity must not."""
    code = (
        "from streams.config.settings import Tuning\n"
        "from streams.runtime.snapshots.identity import canonical, identity\n"
        "print(identity(Tuning(), 4096), canonical({'b', 'a', 'c'}))"
    )
    run = [sys.executable, "-c", code]
    first, second = (subprocess.run(run, check=True, capture_output=True).stdout for _ in range(2))
    assert first == second
    assert first.decode().split()[0] == identity(Tuning(), 4096)


def test_other_settings_are_another_identity():
    """A state learnt under others may not fit."""
    job = replace(JobStageConfig(), update_seconds=7.0)
    others = [
        Tuning(base=replace(Configs(), job=job)),
        Tuning([Layer(where="t", modes={"peer_step": "off"})]),
    ]
    found = {identity(tuning, 4096) for tuning in (Tuning(), *others)} | {identity(Tuning(), 512)}
    assert len(found) == 4


def test_arrays_count_by_their_values():
    """Their text would leave out the middle of long ones."""
    long = np.zeros(5000)
    other = long.copy()
    other[2500] = 1.0
    assert canonical(long) == canonical(long.copy()) != canonical(other)
