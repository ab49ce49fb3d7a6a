"""What the driver of a GPU asks for: that comes before the action of a finding's kind."""

from collections.abc import Iterable

from alerts.kinds import kind_of
from alerts.xid_kinds import RECOVERY
from slowrank.telemetry import Suspicion

# Evidence whose value is the action asked for, as NVML numbers them: from the kernel log, and from NVML.
METRICS = (RECOVERY, "gpu.recovery_action")

# Actions that no reset or reboot replaces.
_SETTLED = ("CONTACT_SUPPORT", "HARDWARE_INSPECTION", "REPLACE_CABLE")


def asked_for(hypothesis: str, suspicions: Iterable[Suspicion]) -> str:
    """Return the kind whose action is the one to take: the driver's latest, else that of ``hypothesis``."""
    if kind_of(hypothesis).action in _SETTLED:
        return hypothesis
    asked = [
        (s.ts, int(e.value))
        for s in suspicions
        if s.kind == RECOVERY
        for e in s.evidence
        if e.metric in METRICS
    ]
    return f"{RECOVERY}.{max(asked)[1]}" if asked else hypothesis
