"""The dashboards of deploy/grafana: every query runs, every panel has a data source, nothing overlaps."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path

import grafana_dashboards
import psycopg
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from psycopg.rows import dict_row

from alerts.config import FindingConfig
from store.findings import findings
from store.migrate import migrate
from store.telemetry.batches import write_rows
from store.telemetry.buckets import NodeLatest
from tests.deploy.metric_pages import exported
from tests.store.findings.test_findings import finding
from tests.store.telemetry.test_rollups import step

FOLDER = Path(__file__).resolve().parents[2] / "deploy/grafana"
BOARDS = {path.stem: json.loads(path.read_text()) for path in sorted((FOLDER / "dashboards").glob("*.json"))}
VARIABLES = {"${cluster:sqlstring}": "'c','it''s'", "${job:sqlstring}": "'j1'"}
TARGETS = {
    f"{name}: {panel['title']}/{target['refId']}": target
    for name, board in BOARDS.items()
    for panel in board["panels"]
    for target in panel["targets"]
}
PROMQL = [target["expr"] for target in TARGETS.values() if "expr" in target]
SQL = {title: target["rawSql"] for title, target in TARGETS.items() if "rawSql" in target}
SQL |= {
    f"{name}: annotations": mark["target"]["rawSql"]
    for name, board in BOARDS.items()
    for mark in board["annotations"]["list"]
}
SQL |= {
    f"{name}: variable {variable['name']}": variable["query"]
    for name, board in BOARDS.items()
    for variable in board["templating"]["list"]
    if variable["type"] == "query"
}


def filled(text):
    """A query as Grafana sends it, for the hour around now."""
    for name, value in VARIABLES.items():
        text = text.replace(name, value)
    text = re.sub(
        r"\$__timeFilter\((\w+)\)",
        r"\1 BETWEEN now() - interval '30 days' AND now() + interval '1 day'",
        text,
    )
    assert "$" not in text, text
    return text


@pytest.fixture(scope="module")
def sources():
    """Data sources by uid, as provisioned."""
    text = (FOLDER / "provisioning/datasources/slowrank.yml").read_text()
    return {source["uid"]: source["type"] for source in yaml.safe_load(text)["datasources"]}


@pytest.mark.parametrize("name", grafana_dashboards.DASHBOARDS)
def test_dashboards_are_written_by_the_script(name):
    """What is provisioned is what scripts/grafana_dashboards.py writes."""
    written = (FOLDER / f"dashboards/{name}.json").read_text()
    assert written == grafana_dashboards.text(name), "run: PYTHONPATH=. python scripts/grafana_dashboards.py"
    assert BOARDS.keys() == grafana_dashboards.DASHBOARDS.keys()


def unknown(ours, read, path=""):
    """The paths of what a reader of dashboards has dropped or changed."""
    if isinstance(ours, dict):
        for name, value in ours.items():
            if isinstance(read, dict) and name in read:
                yield from unknown(value, read[name], f"{path}/{name}")
            else:
                yield f"{path}/{name}"
    elif isinstance(ours, list) and isinstance(read, list) and len(ours) == len(read):
        for i, (value, other) in enumerate(zip(ours, read, strict=True)):
            yield from unknown(value, other, f"{path}/{i}")
    elif ours != read:
        yield path


def dropped(board):
    """The paths of a dashboard that Grafana's own types do not have."""
    register_default_plugins()
    read = json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))
    # The types of a mark's query are open: each data source adds its own.
    return [path for path in unknown(board, read) if not re.match("/annotations/list/./target/", path)]


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_dashboards_are_of_the_published_schema(board):
    """Grafana's types read every field of dashboards, panels, their options and Prometheus queries."""
    assert dropped(board) == []


def test_a_field_outside_the_schema_is_found():
    """A misspelt one would be ignored by Grafana without a word."""
    board = json.loads(json.dumps(BOARDS["fleet"]))
    series = next(i for i, panel in enumerate(board["panels"]) if panel["type"] == "timeseries")
    board["panels"][series] |= {"options": {"legnd": {}}, "gridPoss": {}}
    board["panels"][series]["fieldConfig"] = {"defaults": {"custom": {"drawStile": "bars"}}}
    board["refrehs"] = "5s"
    at = f"/panels/{series}"
    assert sorted(dropped(board)) == [
        f"{at}/fieldConfig/defaults/custom/drawStile",
        f"{at}/gridPoss",
        f"{at}/options/legnd",
        "/refrehs",
    ]


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_panels_have_a_place_and_a_source(board, sources):
    """Each has its own number, a data source that is provisioned, and covers no other."""
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        used = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(sources[source["uid"]] == source["type"] for source in used)
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    cells = [{(x, y) for x in _span(p, "x", "w") for y in _span(p, "y", "h")} for p in panels]
    assert not any(a & b for a, b in combinations(cells, 2))


def _span(panel, start, length):
    place = panel["gridPos"]
    return range(place[start], place[start] + place[length])


def test_dashboards_ask_for_metrics_that_are_served():
    """Every name in PromQL is served by some role."""
    asked = set(re.findall(r"\bslowrank_\w+", "\n".join(PROMQL)))
    assert len(asked) > 20
    assert asked <= exported()


def test_variables_are_quoted_wherever_they_are_used_in_sql():
    """A job's name comes from telemetry: it is put into SQL as an escaped string only."""
    for text in SQL.values():
        assert set(re.findall(r"\$\{[^}]*\}|\$[a-z]\w*", text)) <= set(VARIABLES)


def test_every_query_runs_as_the_role_of_dashboards(database):
    """On a filled database, read-only; each returns rows."""
    migrate(database)
    now = datetime.now(UTC).timestamp()
    with psycopg.connect(database, autocommit=True) as conn:
        _fill(conn, now)
    with psycopg.connect(database, autocommit=True, row_factory=dict_row) as conn:
        conn.execute("SET ROLE slowrank_grafana")
        conn.execute("SET default_transaction_read_only = on")
        answers = {title: conn.execute(filled(text)).fetchall() for title, text in SQL.items()}
    assert [title for title, rows in answers.items() if not rows] == []
    assert len(answers) > 20
    _check(answers)


def _check(answers):
    """Compare what can be computed by hand."""

    def one(title):
        [row] = answers[title]
        return next(iter(row.values()))

    assert one("fleet: Critical now/A") == 1
    assert one("fleet: GPU-hours lost per hour/A") == 12.5
    assert one("fleet: Nodes silent for 30 s/A") == 1
    assert one("job: Ranks/A") == 4
    [worst, *_] = answers["job: Slowest ranks in this time/A"]
    assert (worst["rank"], float(worst["over_median"])) == (3, 1.25)
    ratios = answers["job: Compute of the ten slowest ranks, over the median of all/A"]
    assert {row["metric"] for row in ratios} == {f"rank {i}" for i in range(4)}
    assert [row["title"] for row in answers["job: Open findings of this job/A"]] == ["n1 GPU 5 is slow"]
    assert answers["fleet: annotations"][0]["tags"] == "straggler.fail_slow"


def _fill(conn, now):
    """Two nodes, one of them silent; a job of four ranks of which one is slow; its finding."""
    times = {"onset": now - 600, "onset_lo": now - 601, "onset_hi": now - 599, "detected_at": now - 590}
    slow = replace(finding(), **times, last_seen_at=now, as_of=now)
    assert findings.save(conn, slow, FindingConfig()) is not None
    nodes = [
        NodeLatest(
            cluster="c",
            node=f"n{i}",
            last_seen_at=now - 3600 * i,
            boot_id="b",
            seq=1,
            gpus=8,
            nics=4,
            job_id="j1",
        )
        for i in (0, 1)
    ]
    bucket = now // 10 * 10 - 300
    ranks = [
        step(job_id="j1", rank=rank, bucket=bucket + 10 * k, compute_seconds_sum=5.0 if rank == 3 else 4.0)
        for rank in range(4)
        for k in range(3)
    ]
    write_rows(conn, [*nodes, *ranks])
