"""Fleet, nodes and GPUs over HTTP."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from store.telemetry.batches import write_rows
from tests.store.evidence.telemetry import T0, nodes


@pytest.fixture
def now(app):
    """Move the clock of the app to a time after the small job (Unix seconds)."""

    def at(ts):
        app.state.services = replace(app.state.services, now=lambda: datetime.fromtimestamp(ts, UTC))

    at(T0 + 1310)
    return at


def test_numbers_and_grid(client, slow_job, now):
    """What is open and what it costs; every node in its rack with a digit for each GPU."""
    fleet = client.get("/api/v1/fleet").json()
    numbers = fleet["numbers"]
    assert (numbers["open_findings"], numbers["open_by_severity"]) == (1, {"critical": 1})
    assert (numbers["nodes"], numbers["nodes_silent"], numbers["gpus"]) == (2, 0, 16)
    assert numbers["newest_sample_at"] == round((T0 + 1300) * 1000)
    assert numbers["jobs_gpu_hours_7d"] == pytest.approx(1290 * 16 / 3600)
    assert numbers["ettr_7d"] == pytest.approx(1.0)
    assert numbers["mttf_hours_7d"] is None
    assert [(rack["rack"], [n["node"] for n in rack["nodes"]]) for rack in fleet["racks"]] == [
        ("r0", ["n0"]),
        ("r1", ["n1"]),
    ]
    assert [rack["nodes"][0]["pips"] for rack in fleet["racks"]] == ["00000400", "00000000"]
    assert [rack["nodes"][0]["state"] for rack in fleet["racks"]] == ["critical", "ok"]


def test_restarts_and_losses_lower_the_ratio(client, slow_job, now, pool):
    """Time between attempts and what findings cost are not productive; hours over restarts is the MTTF."""
    with pool.connection() as conn:
        conn.execute(
            "INSERT INTO jobs SELECT cluster, job_id, 1, world_size, 0, 9, last_seen_at + interval '100 s', "
            "last_seen_at + interval '710 s' FROM jobs"
        )
        conn.execute("UPDATE findings SET gpu_hours_lost = 1")
    numbers = client.get("/api/v1/fleet").json()["numbers"]
    wall, busy = 2000 * 16 / 3600, 1900 * 16 / 3600
    assert numbers["ettr_7d"] == pytest.approx((busy - 1) / wall)
    assert numbers["mttf_hours_7d"] == pytest.approx(1900 / 3600)
    assert numbers["gpu_hours_lost_1d"] == 1


@pytest.mark.parametrize(
    ("severity", "confidence", "rate"),
    [("info", 0.26, 0.0), ("info", 0.5, 28.0), ("warning", 0.26, 28.0)],
)
def test_information_that_is_rather_wrong_costs_the_fleet_nothing(
    client, slow_job, now, pool, severity, confidence, rate
):
    """It is open all the same."""
    with pool.connection() as conn:
        conn.execute(
            "UPDATE findings SET gpu_hours_lost_per_hour = 28, severity = %s, confidence = %s",
            (severity, confidence),
        )
    numbers = client.get("/api/v1/fleet").json()["numbers"]
    assert (numbers["open_findings"], numbers["gpu_hours_lost_per_hour"]) == (1, rate)


def test_silence_is_a_state(client, slow_job, now):
    """Two minutes after its last sample a node is silent, whatever is open on it."""
    now(T0 + 1421)
    fleet = client.get("/api/v1/fleet").json()
    assert fleet["numbers"]["nodes_silent"] == 2
    assert {n["state"] for rack in fleet["racks"] for n in rack["nodes"]} == {"silent"}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"node": "n[0-1]"}, ["n0", "n1"]),
        ({"node": "n[1,7-9]"}, ["n1"]),
        ({"node": ["n0", "x[1-2]"]}, ["n0"]),
        ({"rack": "r1"}, ["n1"]),
        ({"job_id": "j"}, ["n0", "n1"]),
        ({"job_id": "k"}, []),
        ({"cluster": "other"}, []),
    ],
)
def test_nodes_are_filtered(client, slow_job, params, expected):
    """By Slurm host list, rack, job and cluster."""
    assert [n["node"] for n in client.get("/api/v1/nodes", params=params).json()["items"]] == expected


@pytest.mark.parametrize("path", ["/api/v1/nodes", "/api/v1/timeline"])
@pytest.mark.parametrize("text", ["n[1", "n[2-1]", "n[a]", "n[1-99999]", "n]"])
def test_what_is_no_host_list(client, text, path):
    """Refused by name of the parameter, with what is wrong with it."""
    answer = client.get(path, params={"node": ["n1", text]})
    assert answer.status_code == 409
    assert answer.json()["errors"][0]["pointer"] == "#/query/node"


def test_pages_hold_each_node_once(client, slow_job, pool):
    """By cluster and name, over clusters."""
    with pool.connection() as conn:
        write_rows(conn, [*nodes(cluster="b"), *nodes(cluster="d")])
    for path, many in (("/api/v1/nodes", 1), ("/api/v1/gpus", 8)):
        found, cursor = [], None
        while cursor != "":
            page = client.get(path, params={"limit": 4} | ({"cursor": cursor} if cursor else {})).json()
            found += [(n["cluster"], n["node"]) for n in page["items"]]
            cursor = page["next_cursor"]
        expected = [(c, n) for c in "bcd" for n in ("n0", "n1") for _ in range(many)]
        assert found == expected


def test_a_node_has_its_ranks_and_findings(client, slow_job, now):
    """The ranks of the last minutes with their coordinates, and what it has had."""
    node = client.get("/api/v1/nodes/n0").json()
    assert (node["state"], node["rack"], node["pips"]) == ("critical", "r0", [0, 0, 0, 0, 0, 4, 0, 0])
    assert [rank["rank"] for rank in node["ranks"]] == list(range(8))
    assert node["ranks"][5]["coords"] == {"dp": 1, "pp": 0, "tp": 1}
    (finding,) = node["findings"]
    assert (finding["id"], finding["cause"], finding["gpu_index"]) == (slow_job.id, "throttle.thermal", 5)
    assert client.get("/api/v1/nodes/nowhere").status_code == 404


def test_a_name_in_two_clusters_needs_one(client, slow_job, pool):
    """409 until the cluster is named."""
    with pool.connection() as conn:
        write_rows(conn, nodes(cluster="d"))
    assert client.get("/api/v1/nodes/n0").status_code == 409
    assert client.get("/api/v1/nodes/n0", params={"cluster": "d"}).json()["cluster"] == "d"


def test_history_follows_the_hardware(client, pool, save_finding):
    """By serial and by UUID a GPU is found on both nodes it was in; by place only what has neither."""
    old, new = save_finding(node="a", gpu=1, onset=T0), save_finding(node="b", gpu=7, onset=T0 + 90)
    bare = save_finding(node="b", gpu=7, kind="clock.low", onset=T0 + 50)
    with pool.connection() as conn:
        conn.execute(
            "UPDATE findings SET serial = '16540', gpu_uuid = 'GPU-x', gpu_hours_lost = 2 WHERE id = ANY(%s)",
            ([old.id, new.id],),
        )
    for name in ("16540", "GPU-x"):
        gpu = client.get(f"/api/v1/gpus/{name}").json()
        assert [f["id"] for f in gpu["findings"]] == [new.id, old.id]
        assert gpu["places"] == ["b:7", "a:1"]
        assert gpu["gpu_hours_lost"] == 4
    assert [f["id"] for f in client.get("/api/v1/gpus/b:7").json()["findings"]] == [bare.id]
    assert client.get("/api/v1/gpus/b:99999").json()["findings"] == []


def test_a_key_sees_its_clusters_alone(client_with, slow_job):
    """Nothing of another cluster is counted, listed or found."""
    other = client_with("telemetry:read", clusters=("other",))
    fleet = other.get("/api/v1/fleet").json()
    assert (fleet["numbers"]["nodes"], fleet["numbers"]["open_findings"], fleet["racks"]) == (0, 0, [])
    assert other.get("/api/v1/fleet", params={"cluster": "c"}).json()["racks"] == []
    assert other.get("/api/v1/nodes").json()["items"] == []
    assert other.get("/api/v1/nodes/n0").status_code == 404
    assert other.get("/api/v1/gpus/n0:5").json()["findings"] == []
