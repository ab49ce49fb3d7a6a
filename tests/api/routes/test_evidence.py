"""The evidence of a finding over HTTP, as numbers and as an image."""

from xml.etree import ElementTree

import pytest
from psycopg.conninfo import make_conninfo

from api.app import create_app
from api.routes.evidence import DrawnEvidence
from store.pool import open_pool


def url(finding, what):
    return f"/api/v1/findings/{finding.id}/{what}"


def test_numbers_are_as_documented(client, slow_job):
    """What is served fits the documented model and holds all three plots and the strip."""
    answer = client.get(url(slow_job, "evidence"))
    assert answer.status_code == 200
    shown = DrawnEvidence.model_validate(answer.json())
    assert [plot.role for plot in shown.plots] == ["peers", "baseline", "cause"]
    assert {len(plot.y) for plot in shown.plots} == {len(shown.t)}
    strip = answer.json()["strip"]
    assert strip["subject"] > strip["p95"]
    assert len(answer.content) <= 20_000


def test_image_is_harmless_and_of_the_finding(client, slow_job):
    """SVG with the title, which a browser may neither run nor sniff."""
    answer = client.get(url(slow_job, "plot.svg"), params={"theme": "dark"})
    assert answer.headers["content-type"] == "image/svg+xml"
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    root = ElementTree.fromstring(answer.content)
    assert root.findtext("{http://www.w3.org/2000/svg}title") == slow_job.title
    assert client.get(url(slow_job, "plot.svg"), params={"theme": "pink"}).status_code == 422


@pytest.mark.parametrize("what", ["evidence", "plot.svg", "explain"])
def test_unchanged_is_not_sent_again(client, slow_job, what):
    """Who polls gets 304 while nothing changes."""
    tag = client.get(url(slow_job, what)).headers["etag"]
    assert client.get(url(slow_job, what), headers={"if-none-match": tag}).status_code == 304


@pytest.mark.parametrize("what", ["evidence", "plot.svg", "explain"])
def test_other_clusters_are_not_there(client_with, slow_job, what):
    """A key of another cluster gets the same 404 as for an unknown id."""
    other = client_with("findings:read", clusters=("other",))
    known, unknown = other.get(url(slow_job, what)), other.get(f"/api/v1/findings/fnd_{'0' * 26}/{what}")
    assert (known.status_code, unknown.status_code) == (404, 404)
    assert client_with("findings:read", clusters=("c",)).get(url(slow_job, what)).status_code == 200


@pytest.mark.parametrize("what", ["evidence", "plot.svg", "explain"])
def test_without_telemetry_it_is_empty(client, save_finding, what):
    """A finding whose roll-ups are gone has an empty answer, not an error."""
    answer = client.get(url(save_finding(), what))
    assert answer.status_code == 200
    if what == "evidence":
        assert answer.json()["plots"] == []


def test_the_role_of_the_api_may_read_it(client, settings, api_dsn, slow_job):
    """All tables that it is made from are readable with least privilege."""
    with open_pool(make_conninfo(api_dsn, options="-c role=slowrank_api"), name="least") as least:
        api = type(client)(create_app(settings, least))
        api.headers = client.headers
        assert len(api.get(url(slow_job, "evidence")).json()["plots"]) == 3


def test_a_read_that_takes_too_long_is_a_problem(client, slow_job, monkeypatch):
    """The database ends the statement, and the answer says what to ask instead."""
    monkeypatch.setattr("store.telemetry.windows.STATEMENT_SECONDS", 0.01)
    monkeypatch.setattr(
        "store.evidence.window.bins", lambda conn, *_, **__: conn.execute("SELECT pg_sleep(9)")
    )
    answer = client.get(url(slow_job, "evidence"))
    assert answer.status_code == 503
    assert answer.json()["type"].endswith("/query-too-long")


def test_sentences_are_the_finding_s(client, slow_job):
    """The text has every line of the sections, and names the subject and the cause."""
    shown = client.get(url(slow_job, "explain")).json()
    assert shown["sections"][0]["title"] == "Why n0 GPU 5 (rank 5)"
    assert all(line in shown["text"] for section in shown["sections"] for line in section["lines"])
    assert "thermal throttling" in shown["text"]
