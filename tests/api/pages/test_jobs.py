"""Jobs, nodes and GPUs: what their pages show, to whom, and what their scripts read."""

import re
import time
from urllib.parse import urlencode

import pytest


def test_a_job_leads_from_the_list_to_its_page(signed_in, add_job, save_finding):
    """With its size, what it has lost and why, and its findings."""
    add_job("812345", ranks=8)
    finding = save_finding(gpu_hours_lost=12.5)
    browser = signed_in()
    text = browser.get("/jobs").text
    (link,) = re.findall(r'href="(/job\?[^"]*)"', text)
    assert "running" in text
    page = browser.get(link.replace("&amp;", "&")).text
    assert finding.id in page
    assert "12.5" in page
    assert f'data-onset="{browser.get(f"/api/v1/findings/{finding.id}").json()["onset"]}"' in page
    assert 'data-job="/api/v1/jobs/812345"' in page


def test_a_job_of_many_findings_leads_to_their_list(signed_in, add_job, save_finding, monkeypatch):
    """Its page has the most expensive live ones, then the latest ended ones."""
    monkeypatch.setattr("api.pages.routes.jobs.MAX_FINDINGS", 3)
    add_job("812345", ranks=8)
    cheap, dear = (save_finding(gpu=n, gpu_hours_lost_per_hour=float(n)) for n in (1, 2))
    now = time.time()
    ended = [save_finding(gpu=n, onset=now - 900 + n, status="resolved", resolved_at=now) for n in (3, 4)]
    browser = signed_in()
    page = browser.get("/job?cluster=prod-a&job_id=812345").text
    assert re.findall(r'data-row.*?href="/findings/(\w+)"', page, re.S) == [dear.id, cheap.id, ended[1].id]
    ((link, total),) = re.findall(r'href="(/findings\?[^"]*)">All (\d+) findings', page)
    assert total == "4"
    assert all(f.id in browser.get(link.replace("&amp;", "&")).text for f in (cheap, dear, *ended))


def test_a_hung_job_says_so(signed_in, add_job, save_finding):
    """In the list and on its page, while its last step is seconds old."""
    add_job("812345", ranks=8)
    save_finding(kind="hang.job")
    browser = signed_in()
    for path in ("/jobs", "/job?cluster=prod-a&job_id=812345"):
        text = browser.get(path).text
        assert ">hung<" in text
        assert ">running<" not in text


def test_what_the_script_of_a_job_reads_opens_to_the_session(signed_in, add_job):
    """The band, the heat map and the matrix, by the cookie; the largest cell is of the slow rank."""
    add_job("j1", slow=3)
    browser = signed_in("telemetry:read")
    asked = urlencode({"cluster": "prod-a"})
    assert len(browser.get(f"/api/v1/jobs/j1/steps?{asked}").json()["t"]) == 30
    heat = browser.get(f"/api/v1/jobs/j1/heatmap?{asked}&metric=compute_seconds").json()
    assert heat["rows"]["rank"][heat["top"][0][0]] == 3
    matrix = browser.get(f"/api/v1/jobs/j1/matrix?{asked}&metric=compute_seconds").json()
    assert (matrix["pp"], matrix["dp"]) == ([0, 1], [0, 1, 2, 3])


def test_a_node_shows_its_gpus_ranks_and_findings(signed_in, add_nodes, add_job, save_finding):
    """The rank of each GPU, and the severity of what is open on it."""
    add_job("j1", ranks=8)
    add_nodes("j1-n0", gpus=4)
    finding = save_finding(node="j1-n0", gpu=2, severity="error")
    browser = signed_in()
    text = browser.get("/node?cluster=prod-a&node=j1-n0").text
    figures = re.findall(r'<figure data-gpu="(\d)">(.*?)</figure>', text, re.S)
    assert [int(index) for index, _ in figures] == [0, 1, 2, 3]
    assert all(f"rank {i}" in figure for i, (_, figure) in enumerate(figures))
    assert "error" in figures[2][1]
    assert finding.id in text
    assert finding.id in browser.get("/gpu?id=j1-n0:2").text


def test_the_history_of_a_gpu_follows_the_hardware(signed_in, save_finding, pool):
    """By serial number, from one node to the other."""
    ids = {save_finding(node=node, gpu=1).id for node in ("n1", "n2")}
    with pool.connection() as conn:
        conn.execute("UPDATE findings SET serial = '1652823055647'")
    text = signed_in().get("/gpu?id=1652823055647").text
    assert all(one in text for one in ids)
    assert "n1:1" in text
    assert "n2:1" in text


@pytest.mark.parametrize(
    "path", ["/jobs", "/job?cluster=b&job_id=j", "/node?cluster=b&node=n", "/gpu?id=n:5"]
)
def test_a_key_of_one_cluster_sees_no_other(signed_in, add_job, add_nodes, save_finding, path):
    """Neither job nor node nor finding."""
    add_job("j", cluster="b")
    add_nodes("n", cluster="b")
    finding = save_finding(node="n", cluster="b")
    browser = signed_in("findings:read", "telemetry:read", clusters=("a",))
    answer = browser.get(path)
    assert answer.status_code in (200, 404)
    assert finding.id not in answer.text
    assert "/job?" not in answer.text


def test_titles_of_findings_need_their_scope(signed_in, add_job, add_nodes, save_finding):
    """A key for telemetry alone sees job and node without them."""
    add_job("812345")
    add_nodes("n")
    finding = save_finding(node="n")
    browser = signed_in("telemetry:read")
    for path in ("/job?cluster=prod-a&job_id=812345", "/node?cluster=prod-a&node=n", "/gpu?id=n:5"):
        answer = browser.get(path)
        assert answer.status_code == 200
        assert finding.id not in answer.text
        assert finding.title not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/job?cluster=a&job_id=none",
        "/node?cluster=a&node=none",
        "/job?cluster=a&job_id=x&since=9y",
        "/node",
        "/gpu",
    ],
)
def test_what_is_not_there_is_a_page(signed_in, path):
    """404 or 422 as HTML; a GPU without findings is an empty page."""
    answer = signed_in().get(path)
    assert answer.status_code in (404, 422)
    assert "<h1>" in answer.text


def test_a_node_without_samples_says_what_is_missing(signed_in):
    """A finding of step times or events leads to its node all the same."""
    answer = signed_in().get("/node?cluster=a&node=n1")
    assert answer.status_code == 404
    assert "an exporter on it sends them" in answer.text


def test_no_job_names_the_next_step(signed_in):
    """Before the first step time."""
    assert "StepTimer" in signed_in().get("/jobs").text


def test_hostile_names_are_text(signed_in, add_job, add_nodes):
    """Of jobs and nodes, in text, links and attributes."""
    name = '"><script>alert(1)</script>'
    add_job(name)
    add_nodes(name, rack=name)
    browser = signed_in()
    asked = urlencode({"cluster": "prod-a", "job_id": name, "node": name, "id": name})
    for path in ("/", "/jobs", f"/job?{asked}", f"/node?{asked}", f"/gpu?{asked}"):
        answer = browser.get(path)
        assert answer.status_code == 200, path
        assert "<script>alert" not in answer.text
