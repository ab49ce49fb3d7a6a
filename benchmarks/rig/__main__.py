"""Run the rig: ``python -m benchmarks.rig [options]``."""

import sys

from benchmarks.rig.command import main

sys.exit(main(sys.argv[1:]))
