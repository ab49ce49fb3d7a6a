"""What a detecting worker loads before it joins its group."""

import subprocess
import sys

_CHECK = """
import sys
from streams.runtime.worker import load_kernels
before = set(sys.modules)
load_kernels()
print("ruptures" in before, "ruptures" in sys.modules)
import numpy as np
from detectors.changepoint.offline_segmentation import change_points, offline_check
loaded = set(sys.modules)
steps = np.repeat([0.0, 1.0], 20)
print(offline_check(steps, 20).confirmed, change_points(steps, 0.5), sorted(set(sys.modules) - loaded))
"""


def test_the_first_finding_imports_nothing():
    """Importing ruptures takes most of a second, in which other nodes and jobs would wait."""
    done = subprocess.run([sys.executable, "-c", _CHECK], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["False True", "True [20] []"]
