"""Takes a worker that has died out of its consumer group, so that others get its partitions at once.

The group's coordinator would wait for its session to end. A member is removed by its id, which a worker
writes into its health file; a worker that is alive after all joins again, at the price of a rebalance.
"""

import asyncio

from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import KafkaError, NoError, UnknownMemberIdError, for_code
from aiokafka.protocol.group import LeaveGroupRequest

# For all of it. Chosen: after that the worker's own restart is nearly done.
SECONDS = 5.0


async def leave_group(bootstrap: str, group: str, member: str) -> None:
    """Remove a member; one that has left already is no error.

    Raises ``KafkaError``, or ``TimeoutError`` after ``SECONDS``.
    """
    client = AIOKafkaClient(bootstrap_servers=bootstrap)
    try:
        async with asyncio.timeout(SECONDS):
            await client.bootstrap()
            coordinator = await client.coordinator_lookup(CoordinationType.GROUP, group)
            if not await client.ready(coordinator, group=ConnectionGroup.COORDINATION):
                raise KafkaError("the coordinator is not ready")
            answer = await client.send(
                coordinator, LeaveGroupRequest(group, member), group=ConnectionGroup.COORDINATION
            )
    finally:
        await client.close()
    error = for_code(answer.error_code)
    if error not in (NoError, UnknownMemberIdError):
        raise error()
