"""What Prometheus' own checker finds in our metrics, alert rules and queries: nothing."""

import re
from pathlib import Path

import pytest
import yaml

from exporters.metric_help import HELP
from tests.deploy.metric_pages import pages
from tests.deploy.test_grafana import PROMQL

FOLDER = Path(__file__).resolve().parents[2] / "deploy/prometheus"
FILES = {name: (FOLDER / name).read_text() for name in ("rules.yml", "rules_test.yml")}


def test_every_page_of_metrics_is_clean(promtool):
    """HELP everywhere, standard names and units, counters end in _total."""
    for role, page in pages().items():
        assert promtool("check", "metrics", stdin=page) == "", role


def test_the_alert_rules_are_valid_and_fire_when_they_should(promtool):
    """The rules are unit-tested over series that go blind, lag, fail, and recover."""
    assert "SUCCESS" in promtool("check", "rules", "rules.yml", files=FILES)
    assert "SUCCESS" in promtool("test", "rules", "rules_test.yml", files=FILES)


def test_every_alert_rule_is_tested():
    """With a case in which it fires, and one in which it does not (Watchdog always fires)."""
    rules = {r["alert"] for g in yaml.safe_load(FILES["rules.yml"])["groups"] for r in g["rules"]}
    cases = [c for t in yaml.safe_load(FILES["rules_test.yml"])["tests"] for c in t["alert_rule_test"]]
    assert {c["alertname"] for c in cases if c["exp_alerts"]} == rules
    assert {c["alertname"] for c in cases if not c["exp_alerts"]} == rules - {"Watchdog"}


def test_every_query_of_the_dashboards_is_valid(promtool):
    """As the expression of a recording rule."""
    rules = [{"record": f"panel:{i}", "expr": expr} for i, expr in enumerate(PROMQL)]
    groups = yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]})
    found = promtool("check", "rules", "--lint=none", "panels.yml", files={"panels.yml": groups})
    assert f"{len(rules)} rules found" in found


def test_metrics_of_the_exporter_are_explained():
    """Those that its parts name are in the table of HELP, and no others."""
    root = Path(__file__).resolve().parents[2]
    sources = [*(root / "exporters").rglob("*.py"), root / "cli/run/exporter.py"]
    texts = "\n".join(p.read_text() for p in sources if p.name != "metric_help.py")
    missing = {name for name in HELP if not re.search(rf"['\"]{name}[\"'{{]", texts)}
    assert missing == set()


@pytest.mark.parametrize("role", ["api", "notifier", "detect", "sink", "exporter"])
def test_every_family_has_help(role):
    """A HELP line with text stands before each TYPE."""
    page = pages()[role]
    explained = set(re.findall(r"^# HELP (\S+) \S", page, re.M))
    assert set(re.findall(r"^# TYPE (\S+)", page, re.M)) == explained
