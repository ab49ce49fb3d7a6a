"""Jobs over HTTP: a small job whose rank 5 becomes slower is listed, drawn and charged as it was."""

import base64

import pytest

from store.telemetry.batches import write_rows
from store.telemetry.buckets import JobEvent
from tests.store.evidence.telemetry import ONSET, RANKS, T0

URL = "/api/v1/jobs"
MS = 1000


def window(**more):
    """The whole time of the job, in epoch milliseconds."""
    return {"from": round(T0 * MS), "to": round((T0 + 1300) * MS)} | more


def cells(heat, rows, columns):
    """The codes as a matrix."""
    codes = base64.b64decode(heat["data"])
    assert len(codes) == rows * columns
    return [codes[i * columns : (i + 1) * columns] for i in range(rows)]


def test_job_is_listed_with_its_cost(client, slow_job):
    """Its size, steps and times, and what is open on it."""
    (job,) = client.get(URL).json()["items"]
    assert (job["cluster"], job["job_id"], job["world_size"]) == ("c", "j", RANKS)
    assert (job["first_step"], job["last_step"]) == (0, 649)
    assert (job["started_at"], job["last_seen_at"]) == (round(T0 * MS), round((T0 + 1290) * MS))
    assert (job["open_findings"], job["running"]) == (1, False)
    assert client.get(URL, params={"running": True}).json()["items"] == []


def test_a_job_that_does_not_report_its_size_has_the_ranks_that_were_seen(client, slow_job, pool):
    """Of its latest attempt, in which one of them has not sent a row yet."""
    with pool.connection() as conn:
        conn.execute("UPDATE jobs SET world_size = 0")
        conn.execute("DELETE FROM ranks WHERE job_id = 'j' AND rank = 3")
    assert client.get(f"{URL}/j").json()["world_size"] == RANKS - 1
    assert [job["world_size"] for job in client.get(URL).json()["items"]] == [RANKS - 1]


@pytest.mark.parametrize(
    ("kind", "status", "sure", "age", "state"),
    [
        ("hang.job", "open", ("critical", 0.97), 30, "hung"),
        ("hang.job", "acknowledged", ("critical", 0.97), 600, "hung"),
        ("hang.job", "open", ("info", 0.5), 600, "hung"),
        ("hang.job", "open", ("info", 0.26), 600, "silent"),
        ("hang.job", "resolved", ("critical", 0.97), 30, "running"),
        ("hang.job", "suspected", ("critical", 0.97), 30, "running"),
        ("hang.rank_missing", "open", ("critical", 0.97), 30, "running"),
        ("straggler.fail_slow", "open", ("critical", 0.97), 600, "silent"),
    ],
)
def test_a_hung_job_is_not_running(client, slow_job, pool, kind, status, sure, age, state):
    """From the finding on, though its last step is recent, and for as long as the finding is open; not for
    information that is rather wrong than right, as a file that ends."""
    with pool.connection() as conn:
        conn.execute(
            "UPDATE findings SET kind = %s, status = %s, severity = %s, confidence = %s WHERE job_id = 'j'",
            (kind, status, *sure),
        )
        conn.execute("UPDATE jobs SET last_seen_at = now() - %s * interval '1 second'", (age,))
        conn.execute(
            "INSERT INTO jobs SELECT 'other', job_id, attempt, world_size, first_step, last_step, "
            "first_seen_at, last_seen_at FROM jobs WHERE cluster = 'c'"
        )
    expected = (state, state == "running")
    assert [(job["state"], job["running"]) for job in [client.get(f"{URL}/j?cluster=c").json()]] == [expected]
    listed = {job["cluster"]: (job["state"], job["running"]) for job in client.get(URL).json()["items"]}
    alone = "running" if age < 120 else "silent"
    assert listed == {"c": expected, "other": (alone, alone == "running")}


def test_one_job_says_what_cost_it_what(client, slow_job):
    """Attempts, degrees of parallelism, and lost GPU-hours by kind and cause."""
    job = client.get(f"{URL}/j").json()
    assert job["degrees"] == {"dp": 2, "pp": 2, "tp": 4}
    assert (job["nodes"], len(job["history"])) == (2, 1)
    (cost,) = job["lost"]
    assert (cost["kind"], cost["cause"], cost["open"]) == ("straggler.fail_slow", "throttle.thermal", 1)


@pytest.mark.parametrize("what", ["", "/ranks", "/steps", "/heatmap", "/matrix"])
def test_an_id_may_have_slashes(client, slow_job, pool, what):
    """As the launcher gave it, escaped in the path or not."""
    with pool.connection() as conn:
        conn.execute("UPDATE jobs SET job_id = 'team/llm/7' WHERE job_id = 'j'")
    for name in ("team/llm/7", "team%2Fllm%2F7"):
        assert client.get(f"{URL}/{name}{what}").status_code == 200
    assert client.get(f"{URL}/team/llm{what}").status_code == 404


def test_ranks_are_paged(client, slow_job):
    """Each once, in order, with place and coordinates."""
    found, cursor = [], None
    while cursor != "":
        params = {"limit": 7} | ({"cursor": cursor} if cursor else {})
        page = client.get(f"{URL}/j/ranks", params=params).json()
        found += page["items"]
        cursor = page["next_cursor"]
    assert [place["rank"] for place in found] == list(range(RANKS))
    assert found[13] | {"first_seen_at": 0, "last_seen_at": 0} == {
        "rank": 13,
        "node": "n1",
        "gpu_index": 5,
        "coords": {"dp": 1, "pp": 1, "tp": 1},
        "first_seen_at": 0,
        "last_seen_at": 0,
    }


def test_band_shows_the_slow_rank(client, slow_job):
    """The maximum leaves the band at the onset, and the slowest rank is named."""
    params = window(metric="compute_seconds", max_points=1000)
    band = client.get(f"{URL}/j/steps", params=params).json()
    assert len(band["t"]) == 130
    at = band["t"].index(round(ONSET // 10 * 10 * MS))
    assert (band["max"][at - 1], band["max"][at]) == (pytest.approx(2.015), pytest.approx(2.605))
    assert band["slowest_rank"][at - 1 : at + 1] == [15, 5]
    assert band["median"][at] == pytest.approx(2.0085, abs=0.0011)
    assert (band["ranks"][at], band["unit"], band["sampled"]) == (RANKS, "s", False)
    assert (band["first_step"][at], band["last_step"][at]) == (300, 304)


def test_the_band_has_the_change_points_of_its_median(client, slow_job, pool):
    """One slow rank leaves the median as it is; all of them from the onset on move it there."""
    params = window(metric="compute_seconds", max_points=1000)
    assert client.get(f"{URL}/j/steps", params=params).json()["change_points"] == []
    with pool.connection() as conn:
        conn.execute(
            "UPDATE steps_10s SET compute_seconds_sum = 1.2 * compute_seconds_sum "
            "WHERE job_id = 'j' AND bucket >= to_timestamp(%s)",
            (ONSET // 10 * 10,),
        )
    band = client.get(f"{URL}/j/steps", params=params).json()
    [change] = band["change_points"]
    assert change["at"] == round(ONSET // 10 * 10 * MS)
    assert change["ratio"] == pytest.approx(1.2, abs=0.002)
    assert (change["before"], change["after"]) == (
        pytest.approx(2.0075, abs=0.002),
        pytest.approx(2.409, abs=0.002),
    )


def test_a_change_of_level_stands_beside_what_is_known_of_it(client, client_with, slow_job, pool):
    """The job's declaration, its restart with fewer ranks, and the finding for those who may read it."""
    with pool.connection() as conn:
        conn.execute(
            "UPDATE steps_10s SET compute_seconds_sum = 1.2 * compute_seconds_sum "
            "WHERE job_id = 'j' AND bucket >= to_timestamp(%s)",
            (ONSET // 10 * 10,),
        )
        events = [
            JobEvent("c", "j", "job.schedule", ONSET + 2, "sequences of 8192"),
            JobEvent("c", "j", "job.eval", ONSET + 400, "far from it"),
            JobEvent("c", "other", "job.schedule", ONSET + 2, "another job"),
            JobEvent("b", "j", "job.schedule", ONSET + 2, "another cluster"),
        ]
        write_rows(conn, events)
        conn.execute(
            "INSERT INTO jobs (cluster, job_id, attempt, world_size, first_step, last_step, first_seen_at, "
            "last_seen_at) SELECT cluster, job_id, 1, 8, 301, last_step, to_timestamp(%s), last_seen_at "
            "FROM jobs WHERE job_id = 'j'",
            (ONSET - 3,),
        )
    params = window(metric="compute_seconds", max_points=1000)
    [change] = client.get(f"{URL}/j/steps", params=params).json()["change_points"]
    assert [(one["what"], one["text"], one["finding_id"]) for one in change["explanations"]] == [
        ("resize", "attempt 1, from 16 to 8 ranks", None),
        ("schedule", "sequences of 8192", None),
        ("finding", f"{slow_job.title} (began)", slow_job.id),
    ]
    reader = client_with("telemetry:read")
    [change] = reader.get(f"{URL}/j/steps", params=params).json()["change_points"]
    assert [one["what"] for one in change["explanations"]] == ["resize", "schedule"]


def test_the_band_has_the_checkpoints_that_the_job_reports(client, slow_job, pool):
    """The bins in which a rank saved, with the longest time; zero and unknown are none."""
    params = window(max_points=1000)
    assert client.get(f"{URL}/j/steps", params=params).json()["checkpoints"] == []
    with pool.connection() as conn:
        conn.execute("UPDATE steps_10s SET checkpoint_seconds_sum = 0 WHERE job_id = 'j'")
        conn.execute(
            "UPDATE steps_10s SET checkpoint_seconds_sum = 4 + rank WHERE job_id = 'j' AND rank < 3 "
            "AND bucket = to_timestamp(%s)",
            (T0 + 200,),
        )
    band = client.get(f"{URL}/j/steps", params=params).json()
    assert band["checkpoints"] == [[round((T0 + 200) * MS), 6.0]]


def test_band_is_decimated(client, slow_job):
    """Fewer, wider bins keep the maximum."""
    band = client.get(f"{URL}/j/steps", params=window(metric="compute_seconds", max_points=10)).json()
    assert len(band["t"]) == 10
    assert band["bin_ms"] == 130_000
    assert max(band["max"]) == pytest.approx(2.605)


def test_long_windows_of_large_jobs_are_sampled(client, slow_job, monkeypatch):
    """Beyond what one read may take, one roll-up stands for each bin, and the answer says so."""
    monkeypatch.setattr("store.dashboard.steps.MAX_ROWS", 20 * RANKS)
    band = client.get(f"{URL}/j/steps", params=window(max_points=1000)).json()
    assert band["sampled"]
    assert len(band["t"]) == 19
    assert set(band["ranks"]) == {RANKS}


def test_heat_map_shows_one_warm_row(client, slow_job):
    """Healthy cells are cold, those of rank 5 after the onset at their value, whatever row they stand in."""
    heat = client.get(f"{URL}/j/heatmap", params=window(max_columns=1000)).json()
    rows = cells(heat, RANKS, 130)
    assert (heat["lo"], heat["hi"], heat["by"]) == (1.0, 1.5, "rank")
    assert heat["rows"]["pp"] == sorted(heat["rows"]["pp"])
    row = heat["rows"]["rank"].index(5)
    onset = heat["t"].index(round(ONSET // 10 * 10 * MS))
    ratio = 2.605 / 2.0035
    code = round((ratio - 1) / 0.5 * 254 / 4) * 4
    assert set(rows[row][onset:]) == {code}
    assert max(rows[row][:onset]) <= 4
    assert max(max(codes) for i, codes in enumerate(rows) if i != row) <= 4
    assert {cell[0] for cell in heat["top"]} == {row}
    assert len(heat["top"]) == 130 - onset
    assert heat["top"][0][2] == pytest.approx(ratio, rel=0.002)
    assert heat["first_step"][onset] == 300


def test_large_heat_maps_have_nodes_as_rows(client, slow_job, monkeypatch):
    """With too many cells a row is the slowest rank of a node."""
    monkeypatch.setattr("api.routes.dashboard.jobs.MAX_CELLS", RANKS * 100)
    heat = client.get(f"{URL}/j/heatmap", params=window(max_columns=1000)).json()
    rows = cells(heat, 2, 130)
    assert (heat["by"], heat["rows"]["node"]) == ("node", ["n0", "n1"])
    assert max(rows[0]) > 100 > 8 > max(rows[1])


def test_empty_cells_are_missing(client, slow_job):
    """Where a rank sent nothing there is no value, and no neighbour's either."""
    later = {"from": round((T0 + 1200) * MS), "to": round((T0 + 1400) * MS)}
    heat = client.get(f"{URL}/j/heatmap", params=later).json()
    assert all(set(row[10:]) == {255} for row in cells(heat, RANKS, 20))
    assert heat["first_step"][10:] == [None] * 10


def test_matrix_points_at_the_pair(client, slow_job):
    """Of the four pairs of stage and data-parallel index that of rank 5 is slow."""
    since = window() | {"from": round((ONSET + 10) * MS)}
    shown = client.get(f"{URL}/j/matrix", params=since).json()
    rows = cells(shown, 2, 2)
    assert (shown["pp"], shown["dp"]) == ([0, 1], [0, 1])
    assert shown["slowest_rank"][0][1] == 5
    assert rows[0][1] > 100
    assert max(rows[0][0], rows[1][0], rows[1][1]) <= 4


@pytest.mark.parametrize("what", ["", "/ranks", "/steps", "/heatmap", "/matrix"])
def test_other_clusters_are_not_there(client, client_with, slow_job, what):
    """A key of another cluster gets 404 as for an unknown job, and nothing in the list."""
    other = client_with("telemetry:read", clusters=("other",))
    assert other.get(f"{URL}/j{what}").status_code == 404
    assert other.get(URL).json()["items"] == []
    assert client.get(f"{URL}/j%27--{what}").status_code == 404
    assert client.get(f"{URL}/j{what}", params={"cluster": "c"}).status_code == 200


def test_without_a_time_its_last_minutes_are_shown(client, slow_job):
    """A job that ended last week is drawn up to its end, not up to now."""
    band = client.get(f"{URL}/j/steps").json()
    assert band["t"][-1] == round((T0 + 1290) * MS)


@pytest.mark.parametrize(
    ("path", "params"), [("", {}), ("/j", {}), ("/j/heatmap", window()), ("/j/steps", window())]
)
def test_the_same_answer_is_not_sent_twice(client, slow_job, path, params):
    """Who has it gets 304."""
    tag = client.get(URL + path, params=params).headers["etag"]
    again = client.get(URL + path, params=params, headers={"if-none-match": tag})
    assert again.status_code == 304
