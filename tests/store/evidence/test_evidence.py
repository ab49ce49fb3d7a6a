"""The evidence of a finding: read from the roll-ups, right to the digit, and kept when these are gone."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from alerts.config import FindingConfig
from slowrank.settings import Settings
from slowrank.telemetry.records import Baseline, Evidence, Subject
from store import retention
from store.evidence.freeze import evidence_of, freeze
from store.evidence.panels import chosen
from store.findings import findings
from store.telemetry.batches import write_rows
from store.telemetry.metrics import stored_metric
from tests.roll_ups import packed
from tests.store.evidence.telemetry import CLOCK, ONSET, SLOW_CLOCK, T0, slow_finding, steps, write_job

NOW = datetime.fromtimestamp(ONSET + 800, UTC)


@pytest.fixture
def job(conn):
    """The small job's telemetry, and its finding saved by ``save``."""
    write_job(conn)

    def save(**fields):
        finding = slow_finding(**fields)
        findings.save(conn, finding, FindingConfig())
        return finding

    yield save
    conn.execute("RESET ROLE")
    conn.execute("TRUNCATE samples_10s, steps_10s, nodes, ranks, jobs")


def plot_of(evidence, role):
    (found,) = [plot for plot in evidence["plots"] if plot["role"] == role]
    return found


def column_at(evidence, ts):
    """The place on the time axis of the bucket that a moment falls into."""
    return evidence["t"].index(round(ts // 10 * 10 * 1000))


def test_subject_stands_beside_its_peers(conn, job):
    """One axis of 61 buckets around the onset; the subject's own mean, and quantiles without it."""
    shown = evidence_of(conn, job().id)
    assert shown["onset"] == round(ONSET * 1000)
    assert shown["onset_interval"] == [round((ONSET - 4) * 1000), round((ONSET + 5) * 1000)]
    assert len(shown["t"]) == 61
    assert (shown["from"], shown["to"]) == (shown["t"][0], shown["t"][-1] + 10_000)
    plot, at = plot_of(shown, "peers"), column_at(shown, ONSET)
    assert (plot["metric"], plot["unit"], plot["n"]) == ("compute_seconds", "s", 15)
    assert plot["y"][at - 1 : at + 1] == [2.005, 2.605]
    # Of the ranks 0..15 without 5: the eighth is rank 8.
    assert plot["median"][at] == 2.008
    assert plot["p05"][at] == pytest.approx(2.0007)
    assert plot["p95"][at] == pytest.approx(2.0143)


def test_baseline_of_the_detector(conn, job):
    """A detector's median stands with limits three robust standard deviations around it."""
    given = plot_of(evidence_of(conn, job().id), "baseline")["baseline"]
    limit = 3 * 1.4826 * 0.002
    assert given == {
        "median": 2.005,
        "lo": pytest.approx(2.005 - limit, rel=1e-4),
        "hi": pytest.approx(2.005 + limit, rel=1e-4),
        "n": 70,
        "source": "detector",
    }


def test_a_baseline_of_ratios_is_no_baseline_of_seconds(conn, job):
    """Where ratios come first, the baseline of the seconds themselves is the one that is drawn."""
    given = Baseline(median=1.0, mad=0.001, n=70)
    ratio = Evidence(
        metric="compute_seconds.ratio", unit="1", detector="kernel_cpd", value=1.3, baseline=given
    )
    own = plot_of(evidence_of(conn, job(evidence=(ratio, *slow_finding().evidence)).id), "baseline")
    assert (own["baseline"]["median"], own["baseline"]["source"]) == (2.005, "detector")


def test_baseline_of_the_window(conn, job):
    """Without one of a detector the subject's own values before the onset give it."""
    bare = (Evidence(metric="compute_seconds", unit="s", detector="d", value=2.6),)
    own = plot_of(evidence_of(conn, job(evidence=bare).id), "baseline")["baseline"]
    assert (own["median"], own["source"]) == (2.005, "window")


def test_cause_is_drawn_from_the_node(conn, job):
    """The clock of the very GPU falls at the onset, beside the GPUs of the job's nodes."""
    shown = evidence_of(conn, job().id)
    plot, at = plot_of(shown, "cause"), column_at(shown, ONSET)
    assert (plot["metric"], plot["unit"], plot["n"]) == ("gpu.clock.sm_hz", "Hz", 15)
    assert plot["y"][at - 1] == pytest.approx(CLOCK + 5e6, rel=1e-4)
    assert plot["y"][at] == pytest.approx(SLOW_CLOCK + 5e6, rel=1e-4)
    assert "2 nodes" in plot["peers"]


@pytest.mark.parametrize(
    ("cluster", "metric", "peers"),
    [
        ("c", "gpu.clock.sm_hz", "the other GPUs of 2 nodes"),
        ("other", "gpu.clock.sm_hz", "its node's other GPUs"),
        ("other", "nic.port.tx_bytes_total", "its node's other ports"),
        ("c", "host.cpu.utilization_ratio", "the other nodes"),
        ("other", "host.cpu.utilization_ratio", "other nodes, of which there are none"),
    ],
)
@pytest.mark.usefixtures("job")
def test_peers_are_named_as_they_are(conn, cluster, metric, peers):
    """Devices of the node and of others; a node alone in its cluster has no other node beside it."""
    subject, since = Subject(type="node", cluster=cluster, node="n0"), datetime.fromtimestamp(T0, UTC)
    stored = stored_metric(metric)
    assert stored is not None
    shown = chosen(conn, stored, subject, since=since)
    assert shown is not None
    assert shown.peers == peers


def test_strip_is_the_distribution_since_the_onset(conn, job):
    """All peers by their means, sorted, and the subject far outside of them."""
    strip = evidence_of(conn, job().id)["strip"]
    assert strip["n"] == len(strip["values"]) == 15
    assert strip["values"] == sorted(strip["values"])
    assert strip["subject"] == pytest.approx(2.605)
    assert strip["subject"] > 1.2 * strip["p95"]


def test_job_is_shown_by_the_median_of_its_ranks(conn, job):
    """A finding about the whole job has no line of its own: the band's median is the line."""
    whole = job(subject=Subject(type="job", cluster="c", job_id="j"))
    plot = plot_of(evidence_of(conn, whole.id), "peers")
    assert plot["n"] == 16
    assert plot["y"] == plot["median"]


@pytest.mark.parametrize(
    "subject",
    [
        Subject(type="exporter", cluster="c", node="gone"),
        Subject(type="rack", cluster="c", rack="r1"),
        Subject(type="rank", cluster="elsewhere", rank=1, job_id="j"),
    ],
)
def test_no_telemetry_is_no_plot(conn, job, subject):
    """Subjects without stored series have an axis and no plots; nothing of other clusters is read."""
    shown = evidence_of(conn, job(subject=subject, evidence=()).id)
    assert shown["plots"] == []
    assert "strip" not in shown


def test_hostile_names_are_values(conn, job):
    """Quotes, NUL and percent signs in a subject reach the query as data."""
    odd = Subject(type="nic", cluster="c", node="n'0%s\x00", nic="m'", port="1;--", job_id="j'%(x)s")
    evidence = (Evidence(metric="nic.port.tx_bytes_total", unit="By", detector="d", value=1.0),)
    assert evidence_of(conn, job(subject=odd, evidence=evidence).id)["plots"] == []


def test_frozen_once_and_kept_without_roll_ups(conn, job):
    """The storing worker keeps it as its role; what is served stays the same when the rows are gone."""
    finding = job()
    before = evidence_of(conn, finding.id)
    conn.execute("SET ROLE slowrank_streams")
    assert freeze(conn, now=NOW, days=7) == 1
    assert freeze(conn, now=NOW, days=7) == 0
    conn.execute("RESET ROLE")
    conn.execute("TRUNCATE samples_10s, steps_10s, nodes, ranks, jobs")
    conn.execute("SET ROLE slowrank_api")
    after = evidence_of(conn, finding.id)
    assert (before.pop("frozen"), after.pop("frozen")) == (False, True)
    assert after == before
    assert len(json.dumps(after)) <= 20_000


def test_frozen_only_when_its_window_is_over(conn, job):
    """Five minutes after the onset and two for late roll-ups, and neither suspicions nor beyond retention."""
    job()
    job(subject=Subject(type="node", cluster="c", node="n1"), status="suspected")
    early = datetime.fromtimestamp(ONSET, UTC) + timedelta(minutes=6)
    assert freeze(conn, now=early, days=7) == 0
    assert freeze(conn, now=NOW + timedelta(days=8), days=7) == 0
    assert freeze(conn, now=NOW, days=7) == 1


def test_a_moved_onset_is_taken_again(conn, job):
    """When later evidence dates the onset otherwise, the window follows it."""
    finding = job()
    freeze(conn, now=NOW, days=7)
    conn.execute("UPDATE findings SET onset = onset + interval '60 seconds' WHERE id = %s", (finding.id,))
    moved = evidence_of(conn, finding.id)
    assert not moved["frozen"]
    assert moved["onset"] == round((ONSET + 60) * 1000)
    assert freeze(conn, now=NOW, days=7) == 1
    assert evidence_of(conn, finding.id)["t"] == moved["t"]


def test_retention_keeps_the_evidence_first(conn, job):
    """The hourly round stores evidence before it removes the roll-ups it is made from."""
    finding = job()
    settings = Settings(retention_rollup_days=1)
    at = datetime.fromtimestamp(ONSET, UTC) + timedelta(hours=23)
    retention.prune_as_sink(conn, settings, now=at, config_of=lambda _: FindingConfig())
    later = at + timedelta(days=2)
    retention.prune_as_sink(conn, settings, now=later, config_of=lambda _: FindingConfig())
    assert conn.execute("SELECT count(*) FROM steps_10s").fetchone() == (0,)
    shown = evidence_of(conn, finding.id)
    assert shown["frozen"]
    assert len(shown["plots"]) == 3


def test_a_read_that_takes_too_long_stops_no_round(conn, job, monkeypatch):
    """A finding whose telemetry cannot be read in time is left for the next round, without an error."""
    job()
    monkeypatch.setattr("store.telemetry.windows.STATEMENT_SECONDS", 0.01)
    monkeypatch.setattr(
        "store.evidence.window.bins", lambda conn, *_, **__: conn.execute("SELECT pg_sleep(9)")
    )
    assert freeze(conn, now=NOW, days=7) == 0
    assert conn.execute("SELECT count(*) FROM finding_evidence").fetchone() == (0,)


def test_large_job_stays_small(conn):
    """1,024 ranks: quantiles instead of lines, at most 256 dots, and still below 20 kB."""
    few = [row for row in steps(starts=T0 + 580, buckets=4) if row.rank == 0]
    conn.execute("TRUNCATE steps_10s")
    write_rows(conn, packed(replace(row, rank=rank) for row in few for rank in range(1024)))
    finding = slow_finding()
    findings.save(conn, finding, FindingConfig())
    shown = evidence_of(conn, finding.id)
    assert shown["strip"]["n"] == 1023
    assert len(shown["strip"]["values"]) == 256
    assert len(json.dumps(shown)) <= 20_000
    conn.execute("TRUNCATE steps_10s")
