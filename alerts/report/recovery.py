"""What the driver of a GPU asks for: that comes before the action of a finding's kind."""

from collections.abc import Iterable

from alerts.kinds import rule_of
from slowrank.telemetry import Suspicion

KIND = "xid.154"
METRICS = (KIND, "gpu.recovery_action")
"""Evidence whose value is the action asked for, as NVML numbers them: from the kernel log, and from NVML."""

_SETTLED = ("CONTACT_SUPPORT", "HARDWARE_INSPECTION", "REPLACE_CABLE")
"""Actions that no reset or reboot replaces."""


def asked_for(hypothesis: str, voices: Iterable[Suspicion]) -> str:
    """Return the kind whose action is the one to take: the driver's latest, else that of ``hypothesis``."""
    if rule_of(hypothesis).action in _SETTLED:
        return hypothesis
    asked = [
        (s.ts, int(e.value)) for s in voices if s.kind == KIND for e in s.evidence if e.metric in METRICS
    ]
    return f"{KIND}.{max(asked)[1]}" if asked else hypothesis
