import random

import pytest

from tests.streams.partitions import in_one
from tests.streams.runtime.snapshots.restarts import KilledWorkers
from tests.streams.test_determinism import MIX, telemetry


@pytest.fixture(scope="module", params=MIX)
def recorded(request):
    """Telemetry, and what it leads to in one process."""
    records = telemetry(3, MIX[request.param])
    return records, in_one(records)


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_worker_that_goes_on_from_snapshots_finds_the_same(recorded, tmp_path, partitions):
    """Hangs, silent nodes and debounced conditions under way are in them, whenever it is killed."""
    records, found = recorded
    workers = KilledWorkers(partitions, tmp_path, seed=partitions)
    assert workers.findings(records) == found
    assert workers.counts.loaded > 0
    assert not workers.counts.refused


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_wherever_it_is_killed(recorded, tmp_path, seed):
    """It finds what an undisturbed worker finds, from snapshots and from the log alone, on any number of
    partitions, whatever of what it had processed was committed."""
    records, found = recorded
    chance = random.Random(seed)
    partitions, behind = chance.randint(1, 5), chance.choice([0, 5, 200])
    workers = KilledWorkers(partitions, tmp_path, seed=seed, kills=5, behind=behind)
    assert workers.findings(records) == found
    assert not workers.counts.refused
    assert KilledWorkers(partitions, None, seed=seed, kills=5, behind=behind).findings(records) == found


@pytest.mark.slow
@pytest.mark.parametrize("seed", [197, 205])
def test_a_worker_killed_when_a_silent_site_is_back_names_none_of_its_nodes(seed):
    """Samples that the rebuilt state processes earlier than the killed one are not lost."""
    records = telemetry(3, MIX["silent one after the other, then all at once"])
    assert KilledWorkers(4, None, seed=seed, kills=5, behind=0).findings(records) == in_one(records)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_snapshot_is_as_none(recorded, tmp_path, damage):
    """The log has all of it still."""
    records, found = recorded

    class Damaged(KilledWorkers):
        async def _killed(self):
            for path in tmp_path.glob("*.snapshot"):
                data = bytearray(path.read_bytes())
                if damage == "flip":
                    data[random.Random(1).randrange(len(data))] ^= 4
                else:
                    del data[len(data) // 2 if damage == "cut" else 0 :]
                path.write_bytes(data)
            await super()._killed()

    workers = Damaged(2, tmp_path, seed=5)
    assert workers.findings(records) == found
    assert set(workers.counts.refused) <= {"damaged", "foreign"}
    assert workers.counts.refused
    assert not workers.counts.loaded


@pytest.mark.slow
def test_less_is_read_again_than_without(recorded, tmp_path):
    """That is what they are for."""
    records, found = recorded
    with_snapshots, without = KilledWorkers(2, tmp_path, seed=8), KilledWorkers(2, None, seed=8)
    assert with_snapshots.findings(records) == without.findings(records) == found
    assert with_snapshots.read_again < without.read_again / 2
