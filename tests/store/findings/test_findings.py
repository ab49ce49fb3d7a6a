"""Findings as rows: versions, people's words, news, and what repeats and restarts must not do."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import psycopg
import pytest

from alerts.config import FindingConfig
from alerts.finding import Action, Cause, Finding, dedup_key, finding_id
from alerts.silence import Matcher, Silence
from slowrank.telemetry import Evidence, Subject
from store import retention
from store.dashboard import fleet, jobs, nodes, timeline
from store.findings import deliveries, findings, leases, outbox, search, silences, webhooks
from store.findings.deliveries import Attempt
from store.findings.findings import Conflict, Edit, NotFound
from store.findings.search import FindingFilter
from store.findings.webhooks import Webhook
from tests.streams.cluster.test_stage import stopped

T0 = 1_795_160_000.0
NOW = datetime(2026, 11, 20, 8, 0, tzinfo=UTC)
HOSTILE = "a\x00b'; DROP TABLE findings;-- \u202egnp.exe\ud800</script>\r\n\"\\ %s {}"


def finding(as_of=10.0, *, status="open", onset=0.0, **changes):
    subject = changes.pop("subject", Subject(type="gpu", cluster="c", node="n1", gpu_index=5, job_id="j1"))
    key = changes.pop("dedup_key", dedup_key(subject, changes.get("kind", "straggler.fail_slow")))
    fields = {
        "id": finding_id(key.encode("utf-8", "replace").decode(), T0 + onset),
        "dedup_key": key,
        "kind": "straggler.fail_slow",
        "title": "n1 GPU 5 is slow",
        "severity": "critical",
        "status": status,
        "subject": subject,
        "onset": T0 + onset,
        "onset_lo": T0 + onset - 1,
        "onset_hi": T0 + onset + 1,
        "detected_at": T0 + onset + 5,
        "last_seen_at": T0 + as_of,
        "detector": "peer_step",
        "confidence": 0.95,
        "score": 3.0,
        "gpu_hours_lost": as_of / 10,
        "gpu_hours_lost_per_hour": 12.5,
        "cause": Cause("straggler.fail_slow", 0.9),
        "action": Action("DRAIN_NODE", "Drain n1."),
        "as_of": T0 + as_of,
        "resolved_at": T0 + as_of if status in ("resolved", "expired") else None,
    }
    return Finding(**(fields | changes))


def save(conn, version, **settings):
    return findings.save(conn, version, FindingConfig(**settings))


def test_a_stored_finding_links_to_its_runbook(conn):
    """At the address of the settings; saving the same version again changes nothing."""
    assert save(conn, finding(), runbooks="https://h/{kind}") is not None
    [stored] = search.find(conn, FindingFilter()).items
    assert stored.doc["action"]["runbook_url"] == "https://h/straggler.fail_slow"
    assert save(conn, finding(), runbooks="https://h/{kind}") is None


def get(conn, id_):
    return findings.get(conn, id_)


def types(conn):
    return [e.type for e in outbox.after(conn, 0)]


def test_saved_as_it_was(conn):
    """What comes back is the finding's JSON."""
    change = save(conn, finding())
    stored = get(conn, change.finding_id)
    expected = msgspec.json.decode(msgspec.json.encode(finding().to_json()))
    assert {k: v for k, v in stored.doc.items() if k in expected} == expected
    assert stored.doc.keys() - expected.keys() == {"updated_at"}


def test_repeat_changes_nothing(conn):
    """The same version again is no change and no news."""
    assert save(conn, finding()).event == "finding.opened"
    assert save(conn, finding()) is None
    assert types(conn) == ["finding.opened"]


def test_replay_of_the_past_changes_nothing(conn):
    """A worker that re-reads its input sends the old versions again: none of them is stored or told."""
    life = [
        finding(1, status="suspected"),
        finding(10),
        finding(20, severity="error"),
        finding(30, status="resolved"),
    ]
    for version in life:
        save(conn, version)
    before = get(conn, life[0].id), types(conn)
    assert [save(conn, version) for version in life] == [None] * 4
    assert (get(conn, life[0].id), types(conn)) == before
    assert types(conn) == ["finding.opened", "finding.updated", "finding.resolved"]


@pytest.mark.parametrize(
    ("reopen_within", "gap", "event"),
    [
        (3600, 7200, "finding.opened"),
        (3600, 1800, "finding.reopened"),
        (7 * 86400, 3 * 86400, "finding.reopened"),
        (7 * 86400, 8 * 86400, "finding.opened"),
    ],
)
def test_settings_say_how_long_a_relapse_reopens(conn, reopen_within, gap, event):
    """The store goes by the time that the operator set, as the stage does that made the finding."""
    first = finding(10)
    save(conn, first, reopen_within_seconds=reopen_within)
    save(conn, finding(400, status="resolved"), reopen_within_seconds=reopen_within)
    relapse = finding(430 + gap, onset=400.0 + gap)
    change = save(conn, relapse, reopen_within_seconds=reopen_within)
    assert (change.event, change.finding_id == first.id) == (event, event == "finding.reopened")


@pytest.mark.parametrize(("silent", "same"), [(6 * 3600, False), (7 * 86400, True)])
def test_settings_say_how_long_an_open_cause_is_the_same(conn, silent, same):
    """After three days without a word a cause is the one that is open, unless that has expired by then."""
    save(conn, finding(10))
    change = save(conn, finding(3 * 86400, onset=3 * 86400 - 5.0), open_expires_after_seconds=silent)
    assert (change.finding_id == finding().id) is same


def test_suspicion_is_stored_and_not_told(conn):
    """A suspected finding is visible and makes no event."""
    assert save(conn, finding(status="suspected")).event is None
    assert search.find(conn, FindingFilter()).total == 1


@pytest.mark.parametrize("end", ["resolved", "expired"])
def test_a_suspicion_that_never_opened_is_in_no_list(conn, end):
    """While it lasts it is listed as suspected; once it has ended it is found by its id alone."""
    first = finding(10, status="suspected")
    save(conn, first)
    assert [f.id for f in search.find(conn, FindingFilter(status=("suspected",))).items] == [first.id]
    save(conn, finding(20, status=end))

    assert get(conn, first.id).status == end
    assert lists_with(conn, first) == []


@pytest.mark.parametrize("again", [(), ("suspected",), ("suspected", "expired")])
def test_a_finding_that_was_open_stays_listed(conn, again):
    """Also where it is suspected again and does not open."""
    first = finding(10, status="suspected")
    for number, status in enumerate(("suspected", "open", "resolved", *again)):
        save(conn, finding(10.0 * (number + 1), status=status))

    live = again == ("suspected",)
    assert lists_with(conn, first) == (
        ["find", "view"] if live else ["find", "node", "gpu", "job", "bars", "view"]
    )


def lists_with(conn, one):
    """Return the names of the lists that a finding about a GPU is in."""
    starts, ends = datetime.fromtimestamp(T0 - 100, UTC), datetime.fromtimestamp(T0 + 100, UTC)
    shown = {
        "find": [f.id for f in search.find(conn, FindingFilter()).items],
        "node": [f["id"] for f in nodes.findings_of_node(conn, "c", "n1")],
        "gpu": [f["id"] for f in nodes.findings_of_gpu(conn, "n1:5", ())],
        "job": [f["id"] for f in jobs.findings_within(conn, "c", "j1", starts, ends)],
        "bars": [f["id"] for f in timeline.bars(conn, timeline.BarFilter(starts=starts, ends=ends))],
        "view": [id_ for (id_,) in conn.execute("SELECT id FROM v_findings")],
    }
    return [name for name, ids in shown.items() if one.id in ids]


def test_a_suspicion_that_never_opened_costs_nothing(conn):
    """Neither its job nor the fleet, whatever it was thought to cost."""
    told = [save(conn, finding(ts, status=status)) for ts, status in ((10, "suspected"), (20, "resolved"))]
    assert [change.gpu_hours for change in told] == [0.0, 0.0]
    assert jobs.costs_of(conn, "c", "j1") == []
    assert jobs.with_totals(conn, [{"cluster": "c", "job_id": "j1"}])[0]["gpu_hours_lost"] == 0.0
    assert fleet.gpu_hours_lost(conn, (), datetime.fromtimestamp(T0 - 10, UTC)) == 0.0
    assert conn.execute("SELECT * FROM v_gpu_hours_lost").fetchall() == []


def test_restarted_worker_keeps_the_id(conn):
    """A worker that lost its memory sees a later onset; the cause keeps its first id, onset and cost."""
    first = finding(100)
    save(conn, first)
    change = save(conn, finding(900, onset=600.0, gpu_hours_lost=1.0))
    stored = get(conn, first.id)
    assert change.finding_id == first.id
    assert search.find(conn, FindingFilter()).total == 1
    assert (stored.doc["onset"], stored.doc["gpu_hours_lost"]) == (first.to_json()["onset"], 10.0)
    assert types(conn) == ["finding.opened"]


def test_a_pause_that_was_over_does_not_date_the_stop_that_follows(conn):
    """Only suspected, it never opened; the stop has the same id, as that may have been shown, and its own
    onset."""
    pause = finding(10, status="suspected")
    save(conn, pause)
    stop = replace(finding(200, onset=100.0), id=pause.id)
    save(conn, stop)
    stored = get(conn, pause.id)
    assert stored.doc["onset"] == stop.to_json()["onset"]
    assert stored.doc["detected_at"] == stop.to_json()["detected_at"]


def test_restarted_worker_does_not_take_back(conn):
    """A weaker view after a restart leaves an open finding open."""
    save(conn, finding(100))
    change = save(conn, finding(200, status="suspected", onset=150.0))
    assert change.status == "open"


def test_relapse_is_reopened_under_its_id(conn):
    """A cause back within a day reopens the same row, a day later it is a new one."""
    first = finding(10)
    save(conn, first)
    save(conn, finding(400, status="resolved"))
    again = save(conn, finding(5000, onset=4990.0))
    later = save(conn, finding(5000 + 49 * 3600, onset=49 * 3600.0 + 4990))
    assert (again.finding_id, again.event) == (first.id, "finding.reopened")
    assert get(conn, first.id).doc["occurrences"] == 2
    assert (later.finding_id != first.id, later.event) == (True, "finding.opened")


def test_escalation_is_news_and_moving_numbers_are_not(conn):
    """A higher severity is notified; a growing cost is not."""
    save(conn, finding(10, severity="warning"))
    assert save(conn, finding(20, severity="warning", slowdown_ratio=1.4)).event is None
    assert save(conn, finding(30)).event == "finding.escalated"


def test_acknowledgement_survives_later_versions(conn):
    """A person's word outlives the detectors' next version and ends with the finding."""
    first = finding(10)
    save(conn, first)
    findings.acknowledge(conn, first.id, Edit("ann", NOW, "on it"))
    assert save(conn, finding(20)).status == "acknowledged"
    assert get(conn, first.id).doc["acknowledged"]["by"] == "ann"
    assert save(conn, finding(400, status="resolved")).event == "finding.resolved"
    assert save(conn, finding(900, occurrences=2)).status == "open"
    assert "acknowledged" not in get(conn, first.id).doc


def test_closed_by_hand_stays_closed_until_the_cause_returns(conn):
    """A finding resolved by a person is not opened by the next update, but by the next occurrence."""
    first = finding(10)
    save(conn, first)
    closed = findings.resolve(conn, first.id, Edit("ann", NOW))
    assert (closed.status, closed.event) == ("resolved", "finding.resolved")
    assert save(conn, finding(20)).status == "resolved"
    save(conn, finding(400, status="resolved"))
    back = save(conn, finding(900, occurrences=2))
    assert (back.status, back.event) == ("open", "finding.reopened")
    assert types(conn) == ["finding.opened", "finding.resolved", "finding.reopened"]


def test_stale_version_and_wrong_step_are_refused(conn):
    """An old version, an unknown id and a closed finding are each refused with the reason."""
    first = finding(10)
    seen = save(conn, first).version
    save(conn, finding(20))
    with pytest.raises(Conflict, match="read it again"):
        findings.acknowledge(conn, first.id, Edit("ann", NOW, version=seen))
    findings.resolve(conn, first.id, Edit("ann", NOW))
    with pytest.raises(Conflict, match="resolved"):
        findings.acknowledge(conn, first.id, Edit("ann", NOW))
    with pytest.raises(NotFound):
        findings.resolve(conn, "fnd_none", Edit("ann", NOW))


def test_history_tells_the_life(conn):
    """Every step of a life is on record with who took it."""
    first = finding(10, status="suspected")
    save(conn, first)
    save(conn, finding(20))
    findings.acknowledge(conn, first.id, Edit("ann", NOW, "mine"))
    findings.feedback(conn, first.id, "true_positive", Edit("bob", NOW))
    steps = [(s["event"], s["actor"]) for s in findings.history(conn, first.id)]
    assert steps == [
        ("finding.suspected", "detectors"),
        ("finding.opened", "detectors"),
        ("finding.acknowledged", "ann"),
        ("finding.feedback", "bob"),
    ]


def test_hostile_text_is_kept_harmless(conn):
    """Quotes, markup and odd Unicode come back as they were; what no text column can hold is replaced."""
    subject = Subject(
        type="gpu", cluster=HOSTILE, node=HOSTILE, gpu_uuid=HOSTILE, job_id=HOSTILE, serial=HOSTILE
    )
    note = Evidence(metric=HOSTILE, unit=HOSTILE, detector=HOSTILE, value=float("nan"), note=HOSTILE)
    wild = finding(subject=subject, title=HOSTILE, detector=HOSTILE, group_key=HOSTILE, evidence=(note,))
    change = save(conn, wild)
    findings.acknowledge(conn, change.finding_id, Edit(HOSTILE, NOW, HOSTILE))
    stored = get(conn, change.finding_id)
    clean = HOSTILE.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")
    assert stored.doc["title"] == stored.doc["subject"]["node"] == stored.doc["acknowledged"]["note"] == clean
    assert stored.doc["evidence"][0]["value"] is None
    page = search.find(conn, FindingFilter(nodes=(HOSTILE,), clusters=(HOSTILE,), job_id=HOSTILE))
    assert [item.id for item in page.items] == [change.finding_id]
    assert save(conn, replace(wild, as_of=T0 + 11)) is None


def test_pages_hold_every_finding_once(conn):
    """Walking the pages in any order of sorting meets every finding exactly once."""
    for i in range(7):
        subject = Subject(type="gpu", cluster="c", node=f"n{i}", gpu_index=0)
        save(conn, finding(subject=subject, gpu_hours_lost_per_hour=float(i // 2), onset=float(i // 3)))
    for sort in ("cost", "onset", "detected_at", "updated_at", "severity"):
        seen, after = [], None
        while True:
            page = search.find(conn, FindingFilter(sort=sort, limit=3, after=after))
            seen += [item.id for item in page.items]
            assert page.total == 7
            after = page.next
            if after is None:
                break
        assert (len(seen), len(set(seen))) == (7, 7)


def test_filters(conn):
    """Each filter keeps what it names."""
    save(conn, finding())
    other = Subject(type="node", cluster="d", node="n2")
    hot = finding(kind="throttle.thermal", subject=other, severity="warning", status="suspected")
    save(conn, replace(hot, confidence=0.3, gpu_hours_lost_per_hour=None))

    def nodes(**wanted):
        return [i.doc["subject"]["node"] for i in search.find(conn, FindingFilter(**wanted)).items]

    assert nodes(status=("suspected",)) == ["n2"]
    assert nodes(kinds=("straggler",)) == nodes(kinds=("straggler.fail_slow",)) == ["n1"]
    assert nodes(clusters=("d",)) == nodes(nodes=("n2",)) == ["n2"]
    assert nodes(min_confidence=0.9) == nodes(job_id="j1") == ["n1"]
    assert nodes(severity=("warning",)) == ["n2"]
    assert nodes(severity=("critical",)) == ["n1"]
    assert nodes(onset_to=datetime.fromtimestamp(T0, UTC)) == []
    assert len(nodes(onset_from=datetime.fromtimestamp(T0, UTC))) == 2
    assert search.open_counts(conn) == {("straggler.fail_slow", "critical"): 1}


def hook(name="h", **changes):
    fields = {"id": f"whk_{name}", "name": name, "url": "https://x.example/", "created_by": "k"}
    return Webhook(**(fields | {"created_at": NOW, "updated_at": NOW} | changes))


def soon():
    return datetime.now(UTC) + timedelta(seconds=5)


def test_news_is_queued_for_the_webhooks_it_concerns(conn):
    """Only endpoints whose filters fit get a delivery."""
    wanted: dict[str, dict[str, Any]] = {
        "all": {},
        "resolved": {"events": ("finding.resolved",)},
        "other": {"clusters": ("d",)},
        "ours": {"clusters": ("c",), "min_severity": "critical"},
        "off": {"enabled": False},
    }
    for name, filters in wanted.items():
        webhooks.create(conn, hook(name, **filters), "whsec_x")
    save(conn, finding())
    leased = leases.lease_due(conn, now=soon())
    assert sorted(d.webhook.name for d in leased) == ["all", "ours"]
    assert {d.event.type for d in leased} == {"finding.opened"}


def silence(conn, hours, id_="sil"):
    """Store a silence that began an hour ago and ends in so many; return its end."""
    start, end = datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(hours=hours)
    matchers = (Matcher("node", "n[0-9]", is_regex=True), Matcher("cluster", "d", is_equal=False))
    silences.save(
        conn,
        Silence(id=id_, matchers=matchers, starts_at=start, ends_at=end, created_by="a", comment="c"),
        datetime.now(UTC),
    )
    return end


def test_silenced_news_waits_for_the_end_of_the_silence(conn):
    """A muted delivery is not due; when the silence is over and the finding still open, it is."""
    webhooks.create(conn, hook(), "whsec_x")
    end = silence(conn, hours=1)
    save(conn, finding())
    assert leases.lease_due(conn, now=soon()) == []
    assert [d.state for d in deliveries.listed(conn, "whk_h")] == ["muted"]
    assert len(leases.lease_due(conn, now=end + timedelta(seconds=1))) == 1


def muted(conn, *, hours=14 * 24):
    """Store a silence and a finding that it mutes; return the silence's end."""
    webhooks.create(conn, hook(), "whsec_x")
    end = silence(conn, hours)
    save(conn, finding())
    assert leases.lease_due(conn, now=soon()) == []
    return end


def test_a_silence_ended_by_hand_frees_what_it_held_back(conn):
    """Its news is due at once, not when the silence would have ended; and once."""
    muted(conn)
    conn.execute("SET ROLE slowrank_api")
    assert silences.expire(conn, "sil", datetime.now(UTC))
    conn.execute("SET ROLE slowrank_notifier")
    due = leases.next_due(conn)
    assert due is not None
    assert due <= datetime.now(UTC)
    assert [d.event.type for d in leases.lease_due(conn, now=soon())] == ["finding.opened"]
    assert leases.lease_due(conn, now=soon()) == []


def test_a_silence_with_another_end_holds_back_until_then(conn):
    """Shortened or made longer, what it holds back is due at its new end."""
    before = muted(conn, hours=2)
    shorter = silence(conn, hours=1)
    assert leases.lease_due(conn, now=soon()) == []
    assert leases.next_due(conn) == shorter
    longer = silence(conn, hours=3)
    assert leases.lease_due(conn, now=before + timedelta(seconds=1)) == []
    assert leases.next_due(conn) == longer
    assert len(leases.lease_due(conn, now=longer)) == 1


def test_what_another_silence_mutes_waits_for_that(conn):
    """The end of one silence, by hand or by itself, frees nothing that another one in force matches."""
    end = muted(conn, hours=2)
    second, third = silence(conn, hours=1, id_="sil2"), silence(conn, hours=3, id_="sil3")
    assert leases.lease_due(conn, now=end) == []
    (held,) = deliveries.listed(conn, "whk_h")
    assert (held.state, held.muted_by, held.next_attempt_at, held.attempts) == ("muted", "sil3", third, 0)
    silences.expire(conn, "sil3", datetime.now(UTC))
    silences.expire(conn, "sil", datetime.now(UTC))
    assert leases.lease_due(conn, now=soon()) == []
    assert leases.next_due(conn) == second
    assert len(leases.lease_due(conn, now=second)) == 1


def test_what_is_muted_again_does_not_hide_what_is_due_behind_it(conn):
    """A notifier that asks for one delivery gets one, though an older one has to go on waiting."""
    end = muted(conn, hours=1)
    silence(conn, hours=2, id_="sil2")
    save(conn, finding(subject=Subject(type="rack", cluster="d", rack="r1")))
    conn.execute("UPDATE deliveries SET next_attempt_at = %s WHERE state = 'pending'", (end,))
    conn.execute("UPDATE deliveries SET id = 'dlv_0' WHERE state = 'muted'")
    (leased,) = leases.lease_due(conn, now=end, limit=1)
    assert leased.event.body["subject"]["type"] == "rack"


def test_a_silence_ended_while_it_mutes_frees_that_too(conn, store_dsn):
    """Who ends a silence waits for a worker that has just gone by it, and then sees what that has stored."""
    import threading

    webhooks.create(conn, hook(), "whsec_x")
    silence(conn, hours=14 * 24)
    with psycopg.connect(store_dsn, autocommit=True) as worker, worker.transaction():
        save(worker, finding())
        ending = threading.Thread(target=silences.expire, args=(conn, "sil", datetime.now(UTC)))
        ending.start()
        ending.join(0.3)
    ending.join()
    assert len(leases.lease_due(conn, now=soon())) == 1


def test_news_outlives_a_long_silence_while_its_finding_is_open(conn):
    """Old events are removed, but not one that the end of a silence will make due; that one is notified
    then."""
    webhooks.create(conn, hook(), "whsec_x")
    end = silence(conn, hours=14 * 24)
    save(conn, finding())
    gone = Subject(type="node", cluster="c", node="n2")
    save(conn, finding(subject=gone))
    save(conn, finding(20, subject=gone, status="resolved"))
    conn.execute("SET ROLE slowrank_notifier")
    eighth_day = datetime.now(UTC) + timedelta(days=8)
    assert retention.prune_events(conn, now=eighth_day, days=7) == 2
    assert [e.finding_id for e in outbox.after(conn, 0)] == [finding().id]
    leased = leases.lease_due(conn, now=end + timedelta(seconds=1))
    assert [d.event.type for d in leased] == ["finding.opened"]


def test_a_finding_open_for_weeks_still_ends_at_who_was_sent_its_beginning(conn):
    """Old events of an open finding stay: by its end it is too mild for the endpoint that it called."""
    webhooks.create(conn, hook(min_severity="critical"), "whsec_x")
    save(conn, finding(severity="critical"))
    (opened,) = leases.lease_due(conn, now=soon())
    deliveries.mark_delivered(conn, opened, Attempt(at=soon(), status=200))
    assert retention.prune_events(conn, now=datetime.now(UTC) + timedelta(days=30), days=7) == 0
    save(conn, finding(20, severity="warning", status="resolved"))
    assert [d.event.type for d in leases.lease_due(conn, now=soon())] == ["finding.resolved"]


def test_killed_before_commit_leaves_no_trace(conn, store_dsn):
    """A worker that dies inside save leaves neither the finding nor its news; the next try does both."""
    webhooks.create(conn, hook(), "whsec_x")
    victim = psycopg.connect(store_dsn, autocommit=True)

    def die():
        with victim.transaction():
            save(victim, finding())
            conn.execute("SELECT pg_terminate_backend(%s)", (victim.info.backend_pid,))
            victim.execute("SELECT 1")

    with pytest.raises(psycopg.OperationalError):
        die()
    victim.close()
    assert search.find(conn, FindingFilter()).total == 0
    assert save(conn, finding()).event == "finding.opened"
    assert len(leases.lease_due(conn, now=soon())) == 1


def test_two_workers_at_once_open_one_finding(conn, store_dsn):
    """Two workers that save the same cause at the same time make one row and one event."""
    import threading

    def work(onset):
        with psycopg.connect(store_dsn, autocommit=True) as own:
            save(own, finding(10, onset=onset))

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert search.find(conn, FindingFilter()).total == 1
    assert types(conn) == ["finding.opened"]


def test_listeners_are_woken(conn, store_dsn):
    """A change wakes whoever listens, after it is committed."""
    with psycopg.connect(store_dsn, autocommit=True) as listener:
        listener.execute(f"LISTEN {outbox.CHANNEL}")
        save(conn, finding())
        woken = [n.payload for n in listener.notifies(timeout=5, stop_after=1)]
    assert finding().id in woken[0]


def expire(conn, now, **clusters):
    """End what is silent; ``clusters``: after how many seconds, 48 hours where not said."""

    def config_of(cluster):
        silent = clusters.get(cluster)
        return FindingConfig() if silent is None else FindingConfig(open_expires_after_seconds=silent)

    return findings.expire_silent(conn, now, config_of)


def test_each_cluster_says_when_a_silent_finding_expires(conn):
    """Ended is what was silent for as long as its own cluster's settings say, and as of then."""
    for cluster in ("quick", "usual", "patient"):
        save(conn, finding(10, subject=Subject(type="node", cluster=cluster, node="n")))
    last = datetime.fromtimestamp(T0 + 10, UTC)
    silent = {"quick": 6 * 3600, "patient": 7 * 86400}

    def after(**time):
        expire(conn, last + timedelta(**time), **silent)
        rows = search.find(conn, FindingFilter(status=("expired",))).items
        return {row.cluster: row.doc["resolved_at"] for row in rows}

    assert after(hours=5) == {}
    assert after(hours=9) == {"quick": "2026-11-20T13:33:30Z"}
    assert after(hours=60).keys() == {"quick", "usual"}
    assert after(days=8) == {
        "quick": "2026-11-20T13:33:30Z",
        "usual": "2026-11-22T07:33:30Z",
        "patient": "2026-11-27T07:33:30Z",
    }


def test_what_a_restarted_worker_remembers_is_left_to_it(conn):
    """A time shorter than what it reads again is the stage's alone to keep: it may yet have more to read."""
    save(conn, finding(10))
    last = datetime.fromtimestamp(T0 + 10, UTC)
    assert expire(conn, last + timedelta(minutes=50), c=600) == 0
    assert save(conn, finding(1200, onset=1190.0), open_expires_after_seconds=600).finding_id == finding().id
    assert expire(conn, last + timedelta(hours=2), c=600) == 1


def test_finding_nobody_speaks_of_expires(conn):
    """What a restarted worker has forgotten is ended by the store, once, and told."""
    save(conn, finding(10))
    other = Subject(type="node", cluster="c", node="n2")
    save(conn, finding(10, subject=other, status="suspected"))
    last = datetime.fromtimestamp(T0 + 10, UTC)
    conn.execute("SET ROLE slowrank_streams")
    assert expire(conn, last + timedelta(hours=48)) == 0
    assert expire(conn, last + timedelta(hours=49)) == 2
    assert expire(conn, last + timedelta(hours=50)) == 0
    assert {get(conn, f.id).status for f in search.find(conn, FindingFilter()).items} == {"expired"}
    assert types(conn) == ["finding.opened", "finding.resolved"]
    assert get(conn, finding().id).doc["resolved_at"] == "2026-11-22T07:33:30Z"


def test_findings_that_came_to_nothing_are_pruned(conn, monkeypatch):
    """Suspicions, expired ones and those that recovered unopened go with their history; the others stay."""
    monkeypatch.setattr(retention, "FINDING_BATCH", 2)
    names = {}
    for name in ("suspected", "expired", "suspected_recovered", "open", "resolved", "judged", "young"):
        subject = Subject(type="gpu", cluster="c", node=name, gpu_index=0)
        first = {"suspected_recovered": "suspected", "young": "expired"}.get(name, name)
        first = {"resolved": "open", "judged": "expired"}.get(name, first)
        at = 9 * 86_400.0 if name == "young" else 10.0
        names[name] = save(conn, finding(at, status=first, subject=subject)).finding_id
        if name in ("suspected_recovered", "resolved"):
            save(conn, finding(20.0, status="resolved", subject=subject))
    findings.feedback(conn, names["judged"], "false_positive", Edit("ann", NOW))
    now = datetime.fromtimestamp(T0, UTC) + timedelta(days=10)

    assert retention.prune_findings(conn, now=now, days=11) == 0
    assert retention.prune_findings(conn, now=now, days=9) == 3
    left = {name for name, id_ in names.items() if get(conn, id_)}
    assert left == {"open", "resolved", "judged", "young"}
    orphans = "SELECT count(*) FROM finding_history WHERE finding_id <> ALL(%s)"
    assert conn.execute(orphans, ([names[n] for n in left],)).fetchone() == (0,)


def test_an_expired_finding_waits_for_its_deliveries(conn):
    """What is still to be sent keeps the finding that it is about; sent or given up, it goes."""
    webhooks.create(conn, hook(), "whsec_x")
    kept = save(conn, finding()).finding_id
    save(conn, finding(20.0, status="expired"))
    now = datetime.fromtimestamp(T0, UTC) + timedelta(days=40)
    assert retention.prune_findings(conn, now=now, days=35) == 0
    conn.execute("UPDATE deliveries SET state = 'delivered'")
    assert retention.prune_findings(conn, now=now, days=35) == 1
    assert get(conn, kept) is None


def test_updates_go_to_endpoints_that_subscribe_to_them(conn):
    """An endpoint without a list of events is notified of an opened finding, but not of its updates."""
    for name, asked in (("oncall", ()), ("archive", ("finding.updated",))):
        hook = Webhook(
            id=f"whk_{name}",
            name=name,
            url="https://x.example/",
            events=asked,
            created_by="k",
            created_at=NOW,
            updated_at=NOW,
        )
        webhooks.create(conn, hook, "whsec_1")
    save(conn, finding(10))
    save(conn, finding(20, severity="error"))

    told = conn.execute(
        "SELECT d.webhook_id, e.type FROM deliveries d JOIN events e ON e.id = d.event_id"
    ).fetchall()

    assert sorted(told) == [("whk_archive", "finding.updated"), ("whk_oncall", "finding.opened")]


def test_a_finding_in_shadow_is_stored_and_told_to_nobody(conn):
    """Neither its versions nor what people say about it becomes an event, and nothing counts it."""
    version = finding(shadow=True, dedup_key="c/gpu/n1:5/straggler.fail_slow/shadow")
    change = save(conn, version)
    assert change is not None
    assert change.event is None
    findings.acknowledge(conn, version.id, Edit("p", NOW))
    findings.resolve(conn, version.id, Edit("p", NOW))
    assert types(conn) == []
    assert search.open_counts(conn) == {}
    assert [step["event"] for step in findings.history(conn, version.id)] == [
        "finding.opened",
        "finding.acknowledged",
        "finding.resolved",
    ]


def test_lists_leave_out_what_is_in_shadow_until_asked(conn):
    """Alone, not at all, or beside the others."""
    plain = finding()
    marked = finding(shadow=True, dedup_key=plain.dedup_key + "/shadow")
    for version in (plain, marked):
        save(conn, version)
    shown = {
        shadow: {item.id for item in search.find(conn, FindingFilter(shadow=shadow)).items}
        for shadow in (False, True, None)
    }
    assert shown == {False: {plain.id}, True: {marked.id}, None: {plain.id, marked.id}}
    assert conn.execute("SELECT id FROM v_findings").fetchall() == [(plain.id,)]


def test_the_view_of_lost_gpu_hours_follows_a_stop(conn):
    """Twenty minutes on, the dashboards' view says what the 16 GPUs have lost, once."""
    for version in stopped(until=1205.0)[1]:
        save(conn, version)
    [(lost, count)] = conn.execute("SELECT gpu_hours_lost, findings FROM v_gpu_hours_lost").fetchall()
    assert (lost, count) == (pytest.approx(16 * 1200 / 3600, rel=0.03), 1)


@pytest.mark.parametrize(
    ("severity", "confidence", "counted"), [("info", 0.49, 0.0), ("info", 0.5, 1.0), ("error", 0.49, 1.0)]
)
def test_no_sum_counts_information_that_is_rather_wrong(conn, severity, confidence, counted):
    """Such as a stop that may be the end of its job; the finding itself shows its cost."""
    change = save(conn, finding(severity=severity, confidence=confidence))
    view = conn.execute("SELECT gpu_hours_lost FROM v_gpu_hours_lost").fetchall()
    assert get(conn, change.finding_id).doc["gpu_hours_lost"] == 1.0
    assert change.gpu_hours == sum(lost for (lost,) in view) == counted
    assert fleet.gpu_hours_lost(conn, (), datetime.fromtimestamp(T0 - 10, UTC)) == counted
    [job] = jobs.with_totals(conn, [{"cluster": "c", "job_id": "j1"}])
    assert (job["open_findings"], job["gpu_hours_lost"]) == (1, counted)
    assert [kind["gpu_hours_lost"] for kind in jobs.costs_of(conn, "c", "j1")] == [counted]


def test_what_a_version_adds_to_the_lost_gpu_hours_is_told_once(conn):
    """Nothing while it is suspected, all of it when it opens, then the growth; nothing twice."""
    versions = [finding(10.0, status="suspected"), finding(20.0), finding(20.0), finding(50.0)]
    told = [0.0 if change is None else change.gpu_hours for change in (save(conn, v) for v in versions)]
    assert told == [0.0, 2.0, 0.0, 3.0]
    assert save(conn, finding(60.0, group_key="c/node/n1/x")).gpu_hours == -5.0
