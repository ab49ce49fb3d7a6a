"""The fault catalogue: every kind of fault as a row of data.

A row lists effects on work and hardware and lines in the logs; everything observable is derived from them.
Ranges and durations are from published incident studies where there are any (docs/simulator.md).
"""

from simulator.faults.kinds import FaultKind
from simulator.faults.machine_faults import GPU_FAULTS, HOST_FAULTS
from simulator.faults.shared_faults import JOB_FAULTS, NETWORK_FAULTS, TELEMETRY_FAULTS

# Every kind of fault by name.
CATALOGUE: dict[str, FaultKind] = GPU_FAULTS | HOST_FAULTS | NETWORK_FAULTS | JOB_FAULTS | TELEMETRY_FAULTS
