import asyncio

import pytest

from streams.runtime.background import BackgroundTask


def test_a_chore_that_waits_is_not_begun_twice():
    """While one is under way nothing more is begun, and the caller goes on."""

    async def scenario():
        begun, gate, chore = [], asyncio.Event(), BackgroundTask()

        async def work():
            begun.append(1)
            await gate.wait()

        chore.begin(work)
        await asyncio.sleep(0)
        chore.begin(work)
        assert begun == [1]
        gate.set()
        await asyncio.sleep(0.01)
        chore.begin(work)
        await asyncio.sleep(0)
        assert begun == [1, 1]
        await chore.stop()

    asyncio.run(scenario())


def test_what_a_chore_raised_is_not_lost():
    """The next round hears of it."""

    async def scenario():
        chore = BackgroundTask()

        async def work():
            raise ValueError("broken")

        chore.begin(work)
        await asyncio.sleep(0.01)
        with pytest.raises(ValueError, match="broken"):
            chore.begin(work)

    asyncio.run(scenario())
