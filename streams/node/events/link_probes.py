"""Delays between pairs of nodes, from events of a prober, for the cluster stage, which has both ends of a
pair."""

from slowrank.telemetry import LinkDelay, NodeEvent

DELAY_CODE = "link.delay"


def link_delay(event: NodeEvent) -> list[LinkDelay]:
    """Return the delay to a ``peer`` that an event ``link.delay`` measured; nothing for other events."""
    measured = event.subject
    delay, expected, peer = measured.get("delay_ns"), measured.get("expected_ns"), measured.get("peer")
    if event.code != DELAY_CODE or not isinstance(delay, int) or delay <= 0 or not isinstance(peer, str):
        return []
    is_expected = isinstance(expected, int) and expected > 0
    nic = measured.get("nic")
    return [
        LinkDelay(
            cluster=event.cluster,
            ts=event.ts,
            node=event.node,
            peer=peer,
            seconds=delay / 1e9,
            expected_seconds=int(expected or 0) / 1e9 if is_expected else None,
            nic=None if nic is None else str(nic),
            via=tuple(hop for hop in str(measured.get("via", "")).split("/") if hop),
        )
    ]
