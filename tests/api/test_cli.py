"""The commands against a real served API."""

import json
import os
import signal
import subprocess
import sys

import pytest
import yaml

from api.security.auth import SCOPES
from store.telemetry.rank_pace import write_rank_paces
from tests.store.telemetry.weeks import weeks

pytestmark = pytest.mark.slow  # 70 s in all: every command is a process

PRESET = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


@pytest.fixture
def slowrank(tmp_path):
    """Run the command line in an environment of its own: ``slowrank("findings", "list", env={…})``."""

    def run(*arguments, env=None, code=0):
        clean = {n: v for n, v in os.environ.items() if not n.startswith("SLOWRANK_")}
        done = subprocess.run(
            [sys.executable, "-c", "from cli import main; main()", *arguments],
            env=clean | PRESET | {"XDG_CONFIG_HOME": str(tmp_path)} | (env or {}),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.fixture
def reach(live, receiver, new_token):
    """The environment that leads to the served API."""
    return {"SLOWRANK_URL": live(receiver.port), "SLOWRANK_KEY": new_token(*SCOPES)}


def test_findings_from_list_to_feedback(slowrank, reach, save_finding):
    """list, show, ack, resolve and feedback do what they say, with the exit codes promised."""
    assert "no findings" in slowrank("findings", "list", "--open", "--exit-code", env=reach).stdout
    assert "no lemons" in slowrank("lemons", "--fleet", "16", env=reach).stdout
    saved = save_finding()
    table = slowrank("findings", "list", "--open", "--exit-code", env=reach, code=1).stdout
    assert "critical" in table
    assert "gpu-0423 GPU 5" in table
    assert "1.31x" in table
    assert saved.id in table
    assert json.loads(slowrank("findings", "list", "-o", "json", env=reach).stdout)[0]["id"] == saved.id
    (line,) = slowrank("findings", "list", "-o", "ndjson", "--since", "2h", env=reach).stdout.splitlines()
    assert json.loads(line)["id"] == saved.id
    assert json.loads(slowrank("findings", "show", saved.id, "-o", "json", env=reach).stdout)["history"]
    slowrank("findings", "ack", saved.id, "--note", "mine", env=reach)
    slowrank("findings", "resolve", saved.id, env=reach)
    slowrank("findings", "feedback", saved.id, "true_positive", env=reach)
    assert "no findings" in slowrank("findings", "list", "--open", env=reach).stdout
    assert "HTTP 409" in slowrank("findings", "resolve", saved.id, env=reach, code=2).stderr
    assert "HTTP 422" in slowrank("findings", "show", "nonsense", env=reach, code=2).stderr
    assert "no id given" in slowrank("findings", "show", "", env=reach, code=2).stderr
    assert "HTTP 404" in slowrank("findings", "show", "../keys", env=reach, code=2).stderr


def test_a_list_reports_when_it_is_cut(slowrank, reach, save_finding, receiver):
    """Where there are more than --limit, stderr has a note; stdout is unchanged."""
    for node in ("n1", "n2", "n3"):
        save_finding(node=node)
    cut = slowrank("findings", "list", "--limit", "2", "-o", "json", env=reach)
    assert len(json.loads(cut.stdout)) == 2
    assert "there are more" in cut.stderr
    assert slowrank("findings", "list", "--limit", "3", env=reach).stderr == ""
    slowrank("webhook", "add", receiver.url, env=reach)
    for _ in range(2):
        slowrank("webhook", "test", env=reach)
    assert "there are more" in slowrank("webhook", "deliveries", "--limit", "1", env=reach).stderr
    assert slowrank("webhook", "deliveries", "--limit", "2", env=reach).stderr == ""


def test_a_slow_gpu_is_named(slowrank, reach, pool):
    """chronic names none until weeks of paces show one: then its place and its slowdown."""
    assert "no GPU was slow" in slowrank("chronic", env=reach).stdout
    with pool.connection() as conn:
        write_rank_paces(conn, weeks(slow={13: 0.05}))
    _, row = slowrank("chronic", env=reach).stdout.splitlines()
    assert row.split()[:4] == ["prod-a", "n1", "5", "5.7%"]


def test_wide_and_yaml(slowrank, reach, save_finding):
    """More columns for people with wide screens, all of it for those who read YAML."""
    saved = save_finding()
    wide = slowrank("findings", "list", "-o", "wide", env=reach).stdout
    assert "TITLE" in wide
    assert "TITLE" not in slowrank("findings", "list", env=reach).stdout
    [item] = yaml.safe_load(slowrank("findings", "list", "-o", "yaml", env=reach).stdout)
    assert (item["id"], item["shadow"]) == (saved.id, False)


def _heed_interrupts():
    """A shell lets what it runs in the background ignore SIGINT, and so would all that the tests start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_findings_are_watched_until_interrupted(reach, save_finding, tmp_path):
    """What changes is printed anew; Ctrl-C ends it well."""
    start = "from cli import main; main()"
    clean = {n: v for n, v in os.environ.items() if not n.startswith("SLOWRANK_")}
    watch = subprocess.Popen(
        [sys.executable, "-u", "-c", start, "findings", "list", "--watch"],
        env=clean | PRESET | reach | {"XDG_CONFIG_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_interrupts,
    )
    try:
        assert watch.stdout is not None
        assert watch.stdout.readline().startswith("no findings")
        saved = save_finding()
        assert watch.stdout.readline().startswith("SEVERITY")
        assert saved.id in watch.stdout.readline()
        watch.send_signal(signal.SIGINT)
        assert watch.wait(30) == 0
    finally:
        watch.kill()
        watch.communicate()


def test_hostile_text_stays_text(slowrank, reach, save_finding):
    """Control characters, markup and direction marks of a finding do not reach the terminal."""
    save_finding(node="\x1b[31mred\u202e[bold]x[/bold]\nnext")
    out = slowrank("findings", "list", env=reach).stdout
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "[bold]x[/bold]" in out


def test_webhooks_from_add_to_remove(slowrank, reach, receiver, tmp_path):
    """add prints the secret once; test delivers; deliveries shows it; remove removes."""
    key = tmp_path / "key"
    added = slowrank(
        "webhook", "add", receiver.url, "--min-severity", "error", "--kind", "straggler", env=reach
    )
    webhook_id = added.stdout.split()[1]
    assert "secret whsec_" in added.stdout
    refused = slowrank("webhook", "add", receiver.url, "--kind", "bogus", env=reach, code=2).stderr
    assert "no finding is of the kind 'bogus'" in refused
    assert "straggler.fail_slow" in refused
    assert "`slowrank webhook list`" in slowrank("webhook", "test", "123", env=reach, code=2).stderr
    assert "delivered in" in slowrank("webhook", "test", env=reach).stdout
    listed = slowrank("webhook", "list", env=reach).stdout
    assert webhook_id in listed
    assert "whsec_" not in listed
    (line,) = json.loads(slowrank("webhook", "deliveries", "-o", "json", env=reach).stdout)
    assert "due again" in slowrank("webhook", "retry", line["id"], env=reach).stdout
    receiver.wait_for(2)
    receiver.answers = [(500, {}, b"")]
    assert "HTTP 500" in slowrank("webhook", "test", webhook_id, env=reach, code=1).stderr
    slowrank("webhook", "remove", webhook_id, env=reach)
    assert "no webhooks" in slowrank("webhook", "list", env=reach).stdout
    key.write_text("0" * 32 + "\n")
    pagerduty = ("webhook", "add", receiver.url, "--format", "pagerduty", "--secret-file")
    added = slowrank(*pagerduty, str(key), env=reach)
    assert "0000" not in added.stdout + added.stderr
    assert "no secret can be read" in slowrank(*pagerduty, f"{key}.none", env=reach, code=2).stderr
    refused = slowrank("webhook", "add", "https://169.254.169.254/", env=reach, code=2).stderr
    assert "has no address that a webhook may reach" in refused
    assert "scope" not in refused


def test_the_first_key_is_made_in_the_database(slowrank, live, api_dsn, pool):
    """key create --dsn makes a key that opens the API, which makes and revokes the next."""
    url = {"SLOWRANK_URL": live()}
    first = slowrank("key", "create", "--name", "me", "--scope", "all", "--dsn", api_dsn).stdout.strip()
    reach = url | {"SLOWRANK_KEY": first}
    second = slowrank("key", "create", "--name", "dash", env=reach).stdout.strip()
    key_id = second.split("_")[1]
    assert key_id in slowrank("key", "list", env=reach).stdout
    slowrank("key", "revoke", key_id, env=reach)
    dead = slowrank("findings", "list", env=url | {"SLOWRANK_KEY": second}, code=2).stderr
    assert "HTTP 401" in dead
    assert (
        "unknown scope"
        in slowrank("key", "create", "--name", "x", "--scope", "root", "--dsn", api_dsn, code=2).stderr
    )


def test_where_the_key_comes_from(slowrank, live, new_token, tmp_path):
    """Flag before environment before files; without any, the message explains how to get one."""
    url, token = live(), new_token("findings:read")
    folder = tmp_path / "slowrank"
    folder.mkdir()
    missing = slowrank("findings", "list", "--url", url, code=2).stderr
    assert "slowrank key create" in missing
    (folder / "url").write_text(url + "\n")
    (folder / "key").write_text(token + "\n")
    slowrank("findings", "list")
    slowrank("findings", "list", env={"SLOWRANK_KEY": "srk_wrong_key"}, code=2)
    slowrank("findings", "list", "--key", token, env={"SLOWRANK_KEY": "srk_wrong_key"})
    (tmp_path / "k").write_text(token)
    slowrank("findings", "list", env={"SLOWRANK_KEY_FILE": str(tmp_path / "k")})


def test_what_goes_wrong_is_reported_with_the_next_step(slowrank, live, new_token):
    """No server, no scope, no database, bad settings: one message each, exit code 2."""
    key = {"SLOWRANK_KEY": new_token("metrics:read")}
    assert (
        "slowrank up" in slowrank("findings", "list", "--url", "http://127.0.0.1:1", env=key, code=2).stderr
    )
    assert "findings:read" in slowrank("findings", "list", "--url", live(), env=key, code=2).stderr
    assert "SLOWRANK_DATABASE_URL" in slowrank("api", "run", code=2).stderr
    assert "SLOWRANK_DATABASE_URL" in slowrank("notifier", "run", code=2).stderr
    bad = slowrank("key", "create", "--name", "x", "--dsn", "postgresql://127.0.0.1:1/x", code=2)
    assert "cannot use the database" in bad.stderr
    for command in (("config", "check"), ("api", "run"), ("notifier", "run")):
        assert "api_port" in slowrank(*command, env={"SLOWRANK_API_PORT": "no"}, code=2).stderr


def test_healthcheck(slowrank, live, pool):
    """0 when the process is healthy, 1 when not, 2 when nothing answers."""
    env = {"SLOWRANK_URL": live()}
    assert "ok   database" in slowrank("healthcheck", "api", env=env).stdout
    assert "FAIL streams" in slowrank("healthcheck", "streams", env=env, code=1).stdout
    with pool.connection() as conn:
        conn.execute("INSERT INTO heartbeats VALUES ('streams', 'a', now())")
    assert "ok   streams" in slowrank("healthcheck", "streams", env=env).stdout
    assert "slowrank api run" in slowrank("healthcheck", "api", "--url", "http://127.0.0.1:1", code=2).stderr


def test_config_shows_where_values_come_from(slowrank, tmp_path):
    """check names the origin of each value; secrets are starred; unknown names in the file are errors."""
    (tmp_path / "slowrank.toml").write_text('cluster = "prod"\n')
    env = {"SLOWRANK_DATABASE_URL": "postgresql://u:hunter2@h/d"}
    out = slowrank("config", "check", env=env).stdout
    assert 'cluster = "prod"  (slowrank.toml)' in out
    assert 'database_url = "**********"  (SLOWRANK_DATABASE_URL)' in out
    assert "hunter2" not in slowrank("config", "show", "--redacted", env=env).stdout
    (tmp_path / "slowrank.toml").write_text('clutser = "prod"\n')
    assert "clutser" in slowrank("config", "check", code=2).stderr


def test_openapi_is_printed(slowrank):
    """`slowrank api openapi` prints the document."""
    assert json.loads(slowrank("api", "openapi").stdout)["openapi"].startswith("3.1")


def test_a_finding_for_people(slowrank, reach, save_finding):
    """show prints it as text, with the runbook and the history."""
    saved = save_finding()
    text = slowrank("findings", "show", saved.id, env=reach).stdout
    assert saved.title in text
    assert "do        " in text
    assert "opened by detectors" in text


def test_the_list_says_whose_job_makes_no_steps(slowrank, reach, save_finding, pool):
    """Beside the status; since when is shown by `show`."""
    saved = save_finding(job_slowdown_ratio=2.0)
    with pool.connection() as conn:
        conn.execute(
            "INSERT INTO jobs VALUES ('prod-a', '812345', 0, 8, 0, 9, '2026-01-01Z', '2026-01-01 01:00:00Z')"
        )
    assert "open, job silent" in slowrank("findings", "list", env=reach).stdout
    assert "no steps since 2026-01-01T01:00:10Z" in " ".join(
        slowrank("findings", "show", saved.id, env=reach).stdout.split()
    )


def test_silences(slowrank, reach, save_finding):
    """add, list and expire."""
    slowrank(
        "silence", "add", "node=gpu-0423", "kind=~throttle.*", "--for", "2h", "--comment", "fans", env=reach
    )
    [silence] = json.loads(slowrank("silence", "list", "-o", "json", env=reach).stdout)
    assert silence["comment"] == "fans"
    finding = save_finding(kind="throttle.thermal")
    assert "open, silenced" in slowrank("findings", "list", env=reach).stdout
    assert f"by {silence['id']}" in slowrank("findings", "show", finding.id, env=reach).stdout
    assert "node=gpu-0423 kind=~throttle.*" in slowrank("silence", "list", env=reach).stdout
    slowrank("silence", "expire", silence["id"], env=reach)
    assert "no silences" in slowrank("silence", "list", env=reach).stdout
    refused = slowrank("silence", "add", "nonsense", "--for", "2h", "--comment", "x", env=reach, code=2)
    assert "not a matcher" in refused.stderr


def test_webhooks_are_changed_and_that_is_in_the_audit_log(slowrank, reach, receiver):
    """disable, enable, rotate, events; audit list shows who did it."""
    assert "has the same address" not in slowrank("webhook", "add", receiver.url, env=reach).stderr
    [webhook] = json.loads(slowrank("webhook", "list", "-o", "json", env=reach).stdout)
    again = slowrank("webhook", "add", receiver.url, env=reach)
    assert f"warning: {webhook['id']} has the same address" in again.stderr
    slowrank("webhook", "remove", again.stdout.split()[1], env=reach)
    slowrank("webhook", "disable", webhook["id"], env=reach)
    assert "disabled" in slowrank("webhook", "list", env=reach).stdout
    slowrank("webhook", "enable", webhook["id"], env=reach)
    assert "secret whsec_" in slowrank("webhook", "rotate", webhook["id"], env=reach).stdout
    only = slowrank("webhook", "events", webhook["id"], "--set", "finding.opened", env=reach).stdout
    assert [line.split()[1] for line in only.splitlines() if line[:7] == "deliver"] == ["finding.opened"]
    usual = slowrank("webhook", "events", webhook["id"], "--default", env=reach).stdout
    assert usual.count("deliver ") == 4
    entries = json.loads(slowrank("audit", "list", "-o", "json", env=reach).stdout)
    assert {"webhook.rotate", "webhook.update", "webhook.create"} <= {entry["action"] for entry in entries}


def test_doctor_with_a_served_api(slowrank, reach):
    """Without telemetry and without workers slowrank is blind: broken, each with a next step."""
    checks = json.loads(slowrank("doctor", "--json", env=reach, code=2).stdout)
    states = {check["name"]: check["state"] for check in checks}
    named = ("api", "database of the api", "telemetry", "webhooks")
    assert [states[name] for name in named] == ["ok", "ok", "warn", "warn"]
    assert states["streams"] == "fail"
