"""GPUs slow for good over HTTP, on a real database."""

import math
import time
from statistics import fmean

import pytest

from store.telemetry.rank_pace import write_rank_paces
from tests.store.telemetry.weeks import BEGAN, weeks

URL = "/api/v1/chronic"


@pytest.fixture
def told(pool):
    """Store paces: ``told(weeks(…))``."""

    def write(*fleets):
        with pool.connection() as conn:
            write_rank_paces(conn, [pace for fleet in fleets for pace in fleet])

    return write


def gpus(answer):
    assert answer.status_code == 200, answer.text
    return [(i["cluster"], i["node"], i["gpu_index"]) for i in answer.json()["items"]]


def test_the_slow_gpu_is_served_whole(client, told):
    """Its place, by how much, since when, over how much and how sure."""
    paces = weeks(slow={13: 0.05})
    told(paces)
    (item,) = client.get(URL).json()["items"]
    slower = fmean(p.log_ratio for p in paces if p.rank == 13)
    since = time.strftime("%Y-%m-%dT00:00:00Z", time.gmtime(BEGAN))
    assert item["since"] == since
    assert (item["cluster"], item["node"], item["gpu_index"]) == ("prod-a", "n1", 5)
    assert item["slowdown_ratio"] == pytest.approx(math.exp(slower), abs=0.005)
    assert item["spreads"] > 5
    assert item["certainty"] > 0.999
    assert (item["hours"], item["days"], item["jobs"], item["ranks"]) == (48, 8, 4, 1)


def test_nothing_told_is_nobody_named(client, told):
    """An empty table, and a healthy fleet, give an empty list."""
    assert client.get(URL).json() == {"items": [], "next_cursor": ""}
    told(weeks())
    assert client.get(URL).json() == {"items": [], "next_cursor": ""}


def test_pages_hold_each_once_the_slowest_first(client, told):
    """One at a time, in one order, until the last."""
    told(weeks(slow={3: 0.05, 13: 0.09, 20: 0.07}), weeks("prod-b", slow={1: 0.06}))
    whole = gpus(client.get(URL))
    assert len(whole) == 4
    assert whole[0] == ("prod-a", "n1", 5)
    found, cursor = [], None
    while cursor != "":
        answer = client.get(URL, params={"limit": 1} | ({"cursor": cursor} if cursor else {}))
        found += gpus(answer)
        cursor = answer.json()["next_cursor"]
    assert found == whole


def test_a_key_sees_its_clusters_alone(client_with, told):
    """A cluster is judged by itself, and shown to who may see it."""
    told(weeks(slow={3: 0.05}), weeks("prod-b", slow={1: 0.06}))
    mine = client_with("findings:read", clusters=("prod-b",))
    assert gpus(mine.get(URL)) == [("prod-b", "n0", 1)]
    assert gpus(mine.get(URL, params={"cluster": "prod-a"})) == []
    both = client_with("findings:read")
    assert gpus(both.get(URL, params={"cluster": "prod-a"})) == [("prod-a", "n0", 3)]


def test_days_bound_what_is_looked_at(client, told):
    """Of the last three days alone there is one job and a half: too few for a name."""
    told(weeks(slow={13: 0.05}))
    assert gpus(client.get(URL, params={"days": 2})) == []
    assert gpus(client.get(URL, params={"days": 9})) == [("prod-a", "n1", 5)]


@pytest.mark.parametrize(
    ("params", "status"),
    [
        ({"days": 1}, 422),
        ({"days": 29}, 422),
        ({"limit": 0}, 422),
        ({"limit": 1001}, 422),
        ({"cursor": "x"}, 409),
    ],
)
def test_nonsense_is_a_problem(client, params, status):
    """What the description excludes is a 422; a cursor that no list gave out conflicts with this list."""
    answer = client.get(URL, params=params)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"


def test_the_same_answer_is_not_sent_twice(client, told):
    """Who has the answer already gets 304."""
    told(weeks(slow={13: 0.05}))
    tag = client.get(URL).headers["etag"]
    assert client.get(URL, headers={"if-none-match": tag}).status_code == 304


def test_the_api_reads_under_its_least_privilege(pool, told):
    """The role of the API may read paces."""
    told(weeks(slow={13: 0.05}))
    with pool.connection() as conn:
        conn.execute("SET LOCAL ROLE slowrank_api")
        assert conn.execute("SELECT count(*) FROM paces").fetchone() == (32 * 8,)
        conn.rollback()
