"""Run the rig of one GPU host: ``python -m benchmarks.rig.gpu [options]``."""

import sys

from benchmarks.rig.gpu.command import main

sys.exit(main(sys.argv[1:]))
