"""Paces: each hour counted once in its day, whatever comes in whatever order, and what is asked of weeks."""

import math
import random
from dataclasses import replace
from datetime import UTC, datetime
from statistics import fmean, stdev

import psycopg
import pytest

from alerts.config import FindingConfig
from detectors.fleet.chronic import LARGEST, Machine, Pace, chronic, fleet_of
from store import retention
from store.telemetry.rank_pace import clusters, means, suspects, write_rank_paces
from tests.store.telemetry.weeks import DAY, weeks

T0 = 20_775 * DAY
SINCE = datetime.fromtimestamp(T0, UTC)


def default_config(cluster):
    return FindingConfig()


def pace(**changes):
    first = Pace(machine=Machine("c", "n", 0), job="j", rank=3, at=T0 + 60, log_ratio=0.01, spread=0.004)
    return replace(first, **changes)


def rows(conn):
    return conn.execute(
        "SELECT node, gpu_index, job_id, rank, extract(epoch FROM bucket)::int8, hours, n, ratio_sum, "
        "spread_max FROM paces ORDER BY 1, 2, 3, 5"
    ).fetchall()


def test_a_day_sums_its_hours(conn):
    """Hours of one GPU, job and day are one row; another job or day is another."""
    write_rank_paces(conn, [pace(), pace(at=T0 + 7200, log_ratio=-0.004, spread=0.006), pace(job="k")])
    write_rank_paces(conn, [pace(at=T0 + DAY)])
    assert rows(conn) == [
        ("n", 0, "j", 3, T0, 0b101, 2, 6000, 6000),
        ("n", 0, "j", 3, T0 + DAY, 0b1, 1, 10000, 4000),
        ("n", 0, "k", 3, T0, 0b1, 1, 10000, 4000),
    ]


def test_an_hour_counts_once_and_within_limits(conn):
    """The same hour again changes nothing, and no hour is more than the largest slowdown tested for."""
    write_rank_paces(conn, [pace(log_ratio=2.0, spread=math.inf)])
    write_rank_paces(conn, [pace(log_ratio=2.0), pace(at=T0 + 61, log_ratio=-1.0)])
    assert rows(conn) == [("n", 0, "j", 3, T0, 1, 1, round(LARGEST * 1e6), 10_000_000)]


@pytest.mark.parametrize("seed", range(3))
def test_order_and_repeats_change_nothing(conn, seed):
    """Paces in any order, some twice and in batches of any size, end in the same rows."""
    paces = weeks("c", start=T0, machines=8, days=3)
    write_rank_paces(conn, paces)
    expected = rows(conn)
    conn.execute("TRUNCATE paces")
    rng = random.Random(seed)
    shuffled = rng.sample(paces + paces[::7], len(paces) + len(paces[::7]))
    while shuffled:
        cut = rng.randrange(1, 60)
        write_rank_paces(conn, shuffled[:cut])
        shuffled = shuffled[cut:]
    assert rows(conn) == expected


def test_means_are_those_of_the_machines(conn):
    """The mean over hours and the sd over days of each GPU, as Python counts them."""
    paces = weeks("c", start=T0)
    write_rank_paces(conn, paces)
    expected = []
    for machine in {p.machine for p in paces}:
        mine = [p for p in paces if p.machine == machine]
        days = [fmean(p.log_ratio for p in mine if p.at // DAY == day) for day in {p.at // DAY for p in mine}]
        expected.append((fmean(p.log_ratio for p in mine), stdev(days)))
    found = sorted(means(conn, "c", SINCE))
    assert [m for m, _ in found] == pytest.approx([m for m, _ in sorted(expected)], abs=2e-6)
    assert [s for _, s in found] == pytest.approx([s for _, s in sorted(expected)], abs=2e-6)
    assert clusters(conn, SINCE) == ["c"]
    assert means(conn, "other", SINCE) == []


def test_the_slow_one_is_named_from_its_rows(conn):
    """Of the rows of a fleet only the suspects' days are read, and the slow GPU is named with its day."""
    write_rank_paces(conn, weeks("c", start=T0, days=6, slow={5: 0.04}, late=2))
    usual = fleet_of(means(conn, "c", SINCE))
    assert usual is not None
    days = suspects(conn, "c", SINCE, least=usual.least)
    assert {d.machine for d in days} == {Machine("c", "n0", 5)}
    assert len(days) == 6
    [found] = chronic(days, usual)
    assert (found.machine.gpu_index, found.since, found.days, found.jobs) == (5, T0 + 2 * DAY, 4, 2)
    assert found.ratio == pytest.approx(1.04, abs=0.01)


def test_hostile_names_are_data(conn):
    """Names with NUL, quotes and markup are stored as text."""
    write_rank_paces(conn, [pace(machine=Machine("c", "n\x00'; DROP", 0), job="j\x00")])
    assert [r[:3] for r in rows(conn)] == [("n\ufffd'; DROP", 0, "j\ufffd")]


def test_paces_stay_for_five_weeks(conn):
    """Retention takes what is older, as the role that runs it, and leaves the four weeks asked about."""
    write_rank_paces(conn, [pace(at=T0 - 50 * DAY), pace(at=T0 - 27 * DAY), pace()])
    conn.execute("SET ROLE slowrank_streams")
    write_rank_paces(conn, [pace(at=T0 + 3600)])
    now = datetime.fromtimestamp(T0, UTC)
    removed = retention.prune_telemetry(
        conn, now=now, days=7, pace_days=35, config_of=lambda _: FindingConfig()
    )
    assert removed is not None
    assert removed["paces"] == 1
    assert [r[4] for r in rows(conn)] == [T0 - 27 * DAY, T0]
    conn.execute("RESET ROLE")
    conn.execute("SET ROLE slowrank_api")
    assert len(means(conn, "c", datetime.fromtimestamp(T0 - 28 * DAY, UTC))) == 1
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        write_rank_paces(conn, [pace(at=T0 + 7200)])
