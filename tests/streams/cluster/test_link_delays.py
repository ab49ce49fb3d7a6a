"""Probed delays, end to end through `slowrank backtest`: which port, which link, nobody when all is slow."""

import itertools
import json
import random

import pytest
from typer.testing import CliRunner

from cli import app
from slowrank.telemetry import NodeEvent
from streams.cluster.link_delays import MAX_RAILS, Pairwise
from streams.node.events.link_probes import link_delay

T0 = 1_795_160_000.0
NODES = [f"n{i}" for i in range(8)]


def probes(slow, *, seconds=60, via=None, expected=20_000, seed=1):
    """Every pair once in ten seconds; ``slow(source, target, t)`` is how many times longer it takes."""
    rng = random.Random(seed)
    for t in range(0, seconds, 10):
        for k, (a, b) in enumerate(itertools.permutations(NODES, 2)):
            delay = 20_000 * slow(a, b, t) * rng.uniform(0.97, 1.03)
            told = {"nic": "mlx5_3", "peer": b, "delay_ns": int(delay)}
            told |= {"expected_ns": expected} if expected else {}
            told |= {"via": via(a, b, k)} if via else {}
            yield {
                "kind": "event", "ts": T0 + t + 9 * rng.random(), "cluster": "c", "node": a,
                "source": "probe", "code": "link.delay", "subject": told,
            }  # fmt: skip


def backtest(tmp_path, rows, *, shuffled=False):
    """Return the findings of the rows as a file."""
    rows = list(rows)
    if shuffled:
        random.Random(3).shuffle(rows)
    path = tmp_path / "probes.ndjson"
    # Others are heard on, so that event time goes past the last probe.
    rest = [row | {"ts": T0 + 60 + k, "code": "node.note", "subject": {}} for k, row in enumerate(rows[:30])]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *rest]))
    out = tmp_path / "findings.ndjson"
    result = CliRunner().invoke(app, ["backtest", str(path), "-o", str(out)])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in out.read_text().splitlines()]


def named(findings):
    return [(f["kind"], f["status"], f["subject"]["type"], f["subject"].get("node")) for f in findings]


def test_healthy_probes_find_nothing(tmp_path):
    """Noise of 3 % is no link, with and without expected delays."""
    assert backtest(tmp_path, probes(lambda a, b, t: 1.0)) == []
    assert backtest(tmp_path, probes(lambda a, b, t: 1.0, expected=None)) == []


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_slow_port_is_named(tmp_path, shuffled):
    """What one node sends takes twice as long from 20 s on: its NIC, found after two rounds."""
    rows = probes(lambda a, b, t: 2.0 if a == "n4" and t >= 20 else 1.0)
    found = backtest(tmp_path, rows, shuffled=shuffled)
    assert named(found) == [("link.nic_slow", "open", "nic", "n4")]
    assert found[0]["subject"]["nic"] == "mlx5_3"
    assert found[0]["slowdown_ratio"] == pytest.approx(2.0, rel=0.05)


def test_a_slow_pair_is_suspected_only(tmp_path):
    """One path between two well ports is shown and opens nothing."""
    rows = list(probes(lambda a, b, t: 4.0 if (a, b) == ("n1", "n6") else 1.0))
    assert backtest(tmp_path, rows) == []
    pairwise = Pairwise()
    for row in rows:
        for told in link_delay(NodeEvent(**{k: v for k, v in row.items() if k != "kind"})):
            pairwise.update(told)
    first = pairwise.due(T0 + 100)[0]
    assert (first.kind, first.subject.type, first.overwhelming) == ("link.nic_slow", "link", False)
    assert (first.subject.port, first.subject.peer_port) == ("n1", "n6")


def test_congestion_and_single_rounds_name_nobody(tmp_path):
    """Everything slow, or one slow round, is no link."""
    assert backtest(tmp_path, probes(lambda a, b, t: 2.5)) == []
    assert backtest(tmp_path, probes(lambda a, b, t: 3.0 if a == "n4" and t == 20 else 1.0)) == []


def test_known_paths_name_the_link_between_switches(tmp_path):
    """Where probes say which way they went, the slow uplink is named and no port."""

    def leaf(node):
        return f"leaf{NODES.index(node) // 2}"

    def via(a, b, k):
        return leaf(a) if leaf(a) == leaf(b) else f"{leaf(a)}/spine{k % 3}/{leaf(b)}"

    rows = [
        row | {"subject": row["subject"] | {"delay_ns": row["subject"]["delay_ns"] * (2 if bad(row) else 1)}}
        for row in probes(lambda a, b, t: 1.0, via=via)
    ]
    (found,) = backtest(tmp_path, rows)
    assert (found["kind"], found["status"]) == ("link.nic_slow", "open")
    assert {found["subject"]["port"], found["subject"]["peer_port"]} == {"leaf1", "spine2"}


def bad(row):
    hops = row["subject"]["via"].split("/")
    return "spine2" in hops and "leaf1" in hops


@pytest.mark.parametrize("wrong", [{"delay_ns": 0}, {"delay_ns": "20"}, {"peer": 7}, {"peer": None}])
def test_what_is_no_delay_is_left_out(wrong):
    """An event without a peer or a positive whole number says nothing."""
    told = {"peer": "n2", "delay_ns": 20_000} | wrong
    told = {k: v for k, v in told.items() if v is not None}
    event = NodeEvent(cluster="c", node="n1", ts=T0, source="probe", code="link.delay", subject=told)
    assert link_delay(event) == []


def delay(node, peer, ts, **subject):
    told = {"peer": peer, "delay_ns": 20_000, "expected_ns": 20_000, "nic": "mlx5_3"} | subject
    event = NodeEvent(cluster="c", node=node, ts=T0 + ts, source="probe", code="link.delay", subject=told)
    (message,) = link_delay(event)
    return message


def flood(rng, t, i):
    """A delay between ends, on a rail or along a path that nobody ever hears of again."""
    return rng.choice(
        [
            delay(f"a{i}", f"b{i}", t),
            delay(f"a{i}", f"b{i}", t, nic=f"x{i}"),
            delay("n0", "n1", t, via="/".join(f"v{(i + k) % 97}" for k in range(40))),
            delay("n0", "n0", t, via="n0/n1/n0", nic="loop"),
            delay("n0", "n1", t, delay_ns=2**63 - 1, expected_ns=1, nic=f"y{i % 5}"),
        ]
    )


def test_a_flood_of_invented_ends_hides_no_slow_port():
    """Among thousands of delays that mean nothing the port is named, and what is held stays small."""
    rng, pairwise = random.Random(5), Pairwise()
    said = []
    for t in range(0, 60, 10):
        for a, b in itertools.permutations(NODES, 2):
            pairwise.update(delay(a, b, t, delay_ns=40_000 if a == "n3" else 20_000))
        for i in range(2000):
            pairwise.update(flood(rng, t + 1, 10_000 * t + i))
        said += pairwise.due(T0 + t)
    said += pairwise.due(T0 + 100)
    assert ("n3", "mlx5_3") in {(s.subject.node, s.subject.nic) for s in said if s.state == "raise"}
    assert len(pairwise.rails) <= MAX_RAILS


def test_rails_that_nobody_probes_any_more_are_forgotten():
    """A rail with a slow port leaves nothing behind ten minutes after its last probe."""
    pairwise = Pairwise()
    for t in (*range(0, 40, 10), *range(700, 740, 10)):
        for a, b in itertools.permutations(NODES, 2):
            slow = 40_000 if a == "n3" and t < 100 else 20_000
            pairwise.update(delay(a, b, t, delay_ns=slow, nic="old" if t < 100 else "new"))
        list(pairwise.due(T0 + t))
        if t == 30:
            assert [nic for _, nic, _ in pairwise.rails] == ["old"]
    assert pairwise.rails == []
