"""The Prometheus configuration: every metric it alerts on is one we export, every target one that serves."""

import re
from pathlib import Path

import pytest
import yaml

from slowrank.settings import Settings
from tests.deploy.metric_pages import exported

ROOT = Path(__file__).resolve().parents[2]
RULES = {
    rule["alert"]: rule
    for group in yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())["groups"]
    for rule in group["rules"]
}
CONFIG = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)


def test_what_can_go_blind_has_an_alert():
    """No telemetry, lag, dead letters, a failing webhook, and a dead man that always fires."""
    assert RULES.keys() >= {
        "SlowrankNotIngesting",
        "SlowrankLag",
        "SlowrankDeadLetters",
        "SlowrankWebhookFailing",
        "Watchdog",
    }
    assert RULES["Watchdog"]["expr"] == "vector(1)"


@every_rule
def test_alerts_ask_for_metrics_we_export(rule):
    """An alert on a series nobody serves would never fire."""
    asked = set(re.findall(r"\bslowrank_\w+", rule["expr"]))
    assert asked <= exported()


@every_rule
def test_alerts_say_what_and_what_to_do(rule):
    """Each has a severity, a summary, and, unless it is the dead man, a next step."""
    assert rule["labels"]["severity"] in ("critical", "error", "warning", "none")
    assert rule["annotations"]["summary"]
    assert "description" in rule["annotations"] or rule["labels"]["severity"] == "none"
    assert rule["expr"].count("(") == rule["expr"].count(")")


def test_rules_are_loaded_in_the_container():
    """The rule file stands beside the configuration, in the repository and in the container."""
    mounts = dict(volume.split(":")[:2] for volume in COMPOSE["prometheus"]["volumes"])
    for name in CONFIG["rule_files"]:
        assert mounts[f"./deploy/prometheus/{name}"] == f"/etc/prometheus/{name}"


def test_targets_are_where_our_processes_serve():
    """Every target is a service of the compose file, on the port its settings give it, and reachable."""
    [job] = CONFIG["scrape_configs"]
    [static] = job["static_configs"]
    streams = int(COMPOSE["streams"]["environment"]["SLOWRANK_STREAMS_METRICS_PORT"])
    notifier = Settings.model_fields["notifier_metrics_port"].default
    api = COMPOSE["api"]["environment"]["SLOWRANK_API_PORT"]
    assert set(static["targets"]) == {
        f"api:{api}",
        f"notifier:{notifier}",
        f"streams:{streams}",
        f"streams:{streams + 1}",
    }
    for name in ("streams", "notifier"):
        assert COMPOSE[name]["environment"]["SLOWRANK_METRICS_HOST"] == "0.0.0.0"
        assert "ports" not in COMPOSE[name]
