"""Series, peers, timeline and annotations over HTTP."""

import pytest

from tests.store.evidence.telemetry import CLOCK, ONSET, SLOW_CLOCK, T0

MS = 1000
WHOLE = {"from": round(T0 * MS), "to": round((T0 + 1300) * MS)}
DEVICE = {"metric": "gpu.clock.sm_hz", "cluster": "c", "node": "n0", "instance": "5"}
RANK = {"metric": "compute_seconds", "cluster": "c", "job_id": "j", "rank": 5}


def test_a_device_beside_its_peers(client, slow_job):
    """Its own clock falls at the onset; the median of its peers does not."""
    shown = client.get("/api/v1/series", params=WHOLE | DEVICE).json()
    at = shown["t"].index(round(ONSET // 10 * 10 * MS))
    assert shown["y"][at - 1 : at + 1] == [
        pytest.approx(CLOCK + 5e6, rel=1e-6),
        pytest.approx(SLOW_CLOCK + 5e6, rel=1e-6),
    ]
    assert shown["median"][at] == pytest.approx(CLOCK + 3e6, rel=1e-3)
    assert (shown["unit"], shown["bin_ms"], shown["band"], shown["n"][at]) == ("Hz", 10_000, True, 15)


@pytest.mark.parametrize("path", ["series", "peers"])
def test_a_device_that_the_node_does_not_have_is_not_found(client, client_with, slow_job, path):
    """By its index, or as no roll-up has its name; a silent one has an empty series beside its peers."""
    url = f"/api/v1/{path}"
    for instance in ("99", "GPU-none"):
        answer = client.get(url, params=WHOLE | DEVICE | {"instance": instance})
        assert answer.status_code == 404
        assert answer.json()["detail"] == f"node 'n0' has no GPU {instance!r} with gpu.clock.sm_hz"
    later = {"from": WHOLE["to"] + 3600 * MS, "to": WHOLE["to"] + 3700 * MS}
    assert client.get(url, params=later | DEVICE).status_code == 200
    assert client.get(url, params=WHOLE | DEVICE | {"instance": "99", "node": "elsewhere"}).status_code == 200
    other = client_with("telemetry:read", clusters=("other",))
    assert other.get(url, params=WHOLE | DEVICE | {"instance": "99"}).status_code == 200


def test_a_lost_gpu_keeps_its_series(client, slow_job, pool):
    """Also when the node has fewer by now, and the window is after its last roll-up."""
    later = {"from": WHOLE["to"] + 3600 * MS, "to": WHOLE["to"] + 3700 * MS}
    with pool.connection() as conn:
        conn.execute("UPDATE nodes SET gpus = 4 WHERE node = 'n0'")
    for window in (WHOLE, later):
        assert client.get("/api/v1/series", params=window | DEVICE).status_code == 200


def test_decimation_keeps_the_extremes(client, slow_job):
    """Bins have mean, minimum and maximum of their roll-ups, and are no more than asked for."""
    shown = client.get("/api/v1/series", params=WHOLE | RANK | {"max_points": 4}).json()
    assert len(shown["t"]) <= 4
    assert min(shown["lo"]) == pytest.approx(2.005)
    assert max(shown["hi"]) == pytest.approx(2.605)
    # A mean of equal numbers may differ from them in its last digit.
    of_bins = zip(shown["lo"], shown["y"], shown["hi"], strict=True)
    assert all(lo - 1e-9 <= y <= hi + 1e-9 for lo, y, hi in of_bins)


def test_long_windows_have_no_band(client, slow_job, monkeypatch):
    """Where the peers are too many only the subject is read; and on request."""
    plain = client.get("/api/v1/series", params=WHOLE | RANK | {"band": "none"}).json()
    monkeypatch.setattr("api.routes.dashboard.series.MAX_ROWS", 1)
    for params in (RANK, DEVICE):
        shown = client.get("/api/v1/series", params=WHOLE | params).json()
        assert (shown["band"], set(shown["n"])) == (False, {0})
    assert plain["n"] == [0] * len(plain["t"])
    assert client.get("/api/v1/peers", params=WHOLE | RANK).status_code == 409


def test_peers_are_a_distribution(client, slow_job):
    """Means since the onset: the subject is far above all of them."""
    since = {"from": round((ONSET + 10) * MS), "to": WHOLE["to"]}
    shown = client.get("/api/v1/peers", params=since | RANK).json()
    assert (shown["n"], len(shown["values"])) == (15, 15)
    assert shown["values"] == sorted(shown["values"])
    assert shown["subject"] == pytest.approx(2.605)
    assert shown["p95"] < 2.02


@pytest.mark.parametrize(
    ("params", "status"),
    [
        ({"metric": "nonsense", "cluster": "c", "node": "n0"}, 422),
        ({"metric": "compute_seconds", "cluster": "c"}, 409),
        ({"metric": "gpu.power_watts", "cluster": "c"}, 409),
        (DEVICE | {"from": "-1h", "since": "1h"}, 409),
        (DEVICE | {"from": "-60d"}, 409),
        (DEVICE | {"since": "1y"}, 422),
        (DEVICE | {"max_points": 0}, 422),
        (DEVICE | {"to": "0001-01-01T00:00:00Z"}, 409),
        (DEVICE | {"node": "n'0\x00%s", "from": WHOLE["from"], "to": WHOLE["to"]}, 200),
    ],
)
def test_nonsense_is_a_problem(client, params, status):
    """422 for what the document excludes, 409 for what contradicts itself; hostile names are data."""
    assert client.get("/api/v1/series", params=params).status_code == status


def test_other_clusters_have_no_series(client_with, slow_job):
    """A key of another cluster reads nothing."""
    other = client_with("telemetry:read", clusters=("other",))
    assert other.get("/api/v1/series", params=WHOLE | RANK).json()["t"] == []
    assert other.get("/api/v1/peers", params=WHOLE | RANK).json()["n"] == 0


def test_findings_are_bars(client, slow_job, save_finding):
    """What was open at some time of the window, open ends without an end, grouped as asked."""
    ended = save_finding(node="x", cluster="c", status="resolved", onset=ONSET - 900, resolved_at=ONSET - 100)
    before = save_finding(
        node="y", cluster="c", status="resolved", onset=ONSET - 900, resolved_at=ONSET - 700
    )
    window = {"from": round((ONSET - 600) * MS), "to": round((ONSET + 60) * MS)}
    shown = client.get("/api/v1/timeline", params=window | {"group": "job"}).json()
    bars = {bar["id"]: bar for bar in shown["items"]}
    assert before.id not in bars
    assert list(bars) == [slow_job.id, ended.id]
    assert bars[slow_job.id] | {"end": None} == bars[slow_job.id]
    assert (bars[ended.id]["end"], bars[ended.id]["group"]) == (round((ONSET - 100) * MS), "812345")
    assert (shown["start"], shown["end"]) == (window["from"], window["to"])


def test_bars_are_paged(client, save_finding):
    """Each once, the latest first."""
    ids = [save_finding(node=f"p{i}", onset=ONSET + i).id for i in range(5)]
    found, cursor = [], None
    params = {"from": round((ONSET - 9) * MS), "to": round((ONSET + 99) * MS), "limit": 2}
    while cursor != "":
        page = client.get("/api/v1/timeline", params=params | ({"cursor": cursor} if cursor else {})).json()
        found += [bar["id"] for bar in page["items"]]
        cursor = page["next_cursor"]
    assert found == ids[::-1]


def test_annotations_are_grafana_s(client, slow_job):
    """Epoch milliseconds, title, text with the link, and tags; Slurm host lists and kinds filter."""
    window = {"from": round((ONSET - 600) * MS), "to": round((ONSET + 60) * MS)}
    (one,) = client.get("/api/v1/annotations", params=window | {"node": "n[0-3]"}).json()
    assert (one["time"], one["title"]) == (round(ONSET * MS), slow_job.title)
    assert one["timeEnd"] > one["time"]
    assert one["tags"] == ["straggler.fail_slow", "critical", "c", "n0"]
    assert one["text"].endswith(f"http://slowrank.example.org/findings/{slow_job.id}")
    assert client.get("/api/v1/annotations", params=window | {"kind": "hang"}).json() == []
    assert client.get("/api/v1/annotations", params=window | {"node": "n[1-3]"}).json() == []
