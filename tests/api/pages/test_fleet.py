"""The front page: numbers, the grid of nodes, and what changes while one looks."""

import re

import pytest


def node_on(text, name):
    """Return class names and pips of a node in the grid."""
    found = re.search(rf'<a class="node ([^"]*)"[^>]*aria-label="{name}: (\w+)">(.*?)</a>', text, re.S)
    assert found, name
    return found[1].split(), found[2], re.findall(r'class="(p\d) (a\d+)"', found[3])


def test_each_node_shows_its_gpus(signed_in, add_nodes, save_finding):
    """The GPU with a finding has its severity; of eight healthy ones nothing is written."""
    add_nodes("n1", "n2")
    add_nodes("small", gpus=4)
    save_finding(node="n1", gpu=5, severity="critical")
    text = signed_in().get("/").text
    assert node_on(text, "n1") == (["critical", "g8"], "critical", [("p4", "a5")])
    assert node_on(text, "n2") == (["ok", "g8"], "ok", [])
    assert node_on(text, "small") == (["ok"], "ok", [("p0", f"a{i}") for i in range(4)])


def test_racks_stand_apart_and_silent_nodes_are_marked(signed_in, add_nodes):
    """Nodes without a rack have a place of their own."""
    add_nodes("n1", rack="r1")
    add_nodes("n2", rack="r2", age=600)
    add_nodes("n3", rack=None)
    text = signed_in().get("/").text
    assert re.findall(r'<section class="rack(?: loose)?" aria-label="([^"]*)"', text) == [
        "prod-a",
        "r1",
        "r2",
    ]
    assert node_on(text, "n2")[1] == "silent"
    assert '<dd>1 <span class="of">of 3</span></dd><dt>nodes silent' in text


def test_numbers_in_names_count(signed_in, add_nodes):
    """Racks and nodes are found where people look for them, with and without leading zeros."""
    for node, rack in [("n10", "r10"), ("n9", "r10"), ("n1", "r2"), ("n2", "r02"), ("7", "r"), ("a", "r2b1")]:
        add_nodes(node, rack=rack)
    text = signed_in().get("/").text
    racks = re.findall(r'<section class="rack" aria-label="([^"]*)"', text)
    assert racks == ["r", "r02", "r2", "r2b1", "r10"]
    assert re.findall(r'<a class="node [^>]*aria-label="([^:]*):', text) == [
        "7",
        "n2",
        "n1",
        "a",
        "n9",
        "n10",
    ]


@pytest.mark.parametrize(
    ("age", "shown"), [(None, "No node has sent a sample yet"), (7200, "2 h 00 min old"), (0, None)]
)
def test_old_data_is_said_to_be_old(signed_in, add_nodes, age, shown):
    """Before the first sample, and when the newest is older than two minutes."""
    if age is not None:
        add_nodes("n1", age=age)
    text = signed_in().get("/").text
    assert ('<p class="notice" role="status">' in text) is (shown is not None)
    assert (shown or "") in text


def test_the_numbers_count_what_is_open(signed_in, add_nodes, save_finding):
    """Critical ones, all, and what they cost now."""
    add_nodes("n1")
    save_finding(node="n1", gpu=1, gpu_hours_lost_per_hour=900.5)
    save_finding(node="n1", gpu=2, severity="warning", gpu_hours_lost_per_hour=99.5)
    text = signed_in().get("/").text
    numbers = dict(re.findall(r"<dd>([^<]*?) ?(?:<span[^>]*>[^<]*</span>)?</dd><dt>([^<]*)</dt>", text))
    shown = {name: number for number, name in numbers.items()}
    assert (shown["critical"], shown["open findings"]) == ("1", "2")
    assert shown["GPU-hours lost an hour"] == "1,000"


def test_a_key_sees_the_nodes_of_its_clusters_alone(signed_in, add_nodes):
    """Also when it names another one in the address; without telemetry:read it sees none."""
    add_nodes("mine", cluster="a")
    add_nodes("theirs", cluster="b")
    browser = signed_in("findings:read", "telemetry:read", clusters=("a",))
    for path in ("/", "/fleet-now", "/?cluster=b", "/fleet-now?cluster=b"):
        assert "theirs" not in browser.get(path).text
    assert "mine" in browser.get("/").text
    without = signed_in("findings:read").get("/").text
    assert "mine" not in without
    assert "telemetry:read" in without


def test_the_part_that_changes_is_fetched_by_itself(signed_in, add_nodes, save_finding):
    """Events of findings and a clock fetch it; it is the same as on the page."""
    add_nodes("n1")
    finding, browser = save_finding(node="n1"), signed_in()
    page, part = browser.get("/").text, browser.get("/fleet-now").text
    assert 'sse-connect="/api/v1/events/stream"' in page
    assert 'hx-get="/fleet-now"' in page
    assert "sse:finding.opened" in page
    assert finding.id in part
    assert "<html" not in part


def test_a_thousand_healthy_nodes_are_a_small_page(signed_in, add_nodes):
    """At most 200 bytes a node, since the part that changes is sent again and again."""
    for rack in range(10):
        add_nodes(*(f"gpu-{rack:02d}{i:02d}" for i in range(100)), rack=f"rack-{rack}")
    text = signed_in().get("/fleet-now").text
    assert text.count('<a class="node') == 1000
    assert len(text) < 200_000


def test_rails_with_findings_stand_below_the_nodes(signed_in, add_nodes, save_finding, pool):
    """NICs of one name are one rail, with the worst severity and the nodes; without any there is no list."""
    add_nodes("n1", "n2", "n3")
    browser = signed_in()
    assert "Rails with open findings" not in browser.get("/").text
    for node, severity in (("n1", "warning"), ("n2", "error")):
        save_finding(node=node, gpu=0, kind="link.nic_slow", severity=severity)
    save_finding(node="n3", gpu=1)
    with pool.connection() as conn:
        conn.execute(
            "UPDATE findings SET doc = jsonb_set(doc, '{subject,nic}', '\"mlx5_1\"') "
            "WHERE kind = 'link.nic_slow'"
        )
    (rail,) = re.findall(r'<ul class="plain rails".*?</ul>', browser.get("/").text, re.S)
    assert re.findall(r'class="severity (\w+)">', rail) == ["error"]
    assert "rail mlx5_1" in rail
    assert "2 open" in rail
    assert re.findall(r">(n\d)</a>", rail) == ["n1", "n2"]
