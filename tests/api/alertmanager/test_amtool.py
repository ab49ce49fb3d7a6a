"""Debian's amtool against a served API: alerts listed, silences added, found, changed and expired."""

import json

import pytest
from servers.alertmanager import Amtool
from servers.process import ServiceError

from tests.conftest import unavailable


@pytest.fixture
def token(new_token):
    """A key for findings and silences."""
    return new_token("findings:read", "findings:write")


@pytest.fixture
def amtool(live, token):
    """Run amtool as a key: ``amtool("alert", "query")`` returns what it writes, of a run that succeeds."""
    program = Amtool()
    url = live()

    def run(*arguments, config=f"authorization: {{credentials: {token}}}", fails=False):
        try:
            done = program.run(url, *arguments, config=config)
        except ServiceError as error:
            unavailable(str(error))
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr if fails else done.stdout

    yield run
    program.close()


def alerts(amtool, *arguments):
    listed = json.loads(amtool("alert", "query", "-o", "json", *arguments))
    return {alert["labels"]["node"]: alert["status"]["state"] for alert in listed}


def test_amtool_lists_and_silences(amtool, save_finding):
    """The whole way of somebody who silences a node, and of a script that asks for alerts."""
    save_finding(node="gpu-0001", severity="error")
    save_finding(node="gpu-0002")
    assert alerts(amtool) == {"gpu-0001": "active", "gpu-0002": "active"}
    assert alerts(amtool, "severity=critical") == {"gpu-0002": "active"}
    assert alerts(amtool, "node=~gpu-000[13]", "severity!=critical") == {"gpu-0001": "active"}
    assert alerts(amtool, "SlowrankFinding") == {"gpu-0001": "active", "gpu-0002": "active"}
    assert "gpu-0001 GPU 5 is 1.31x slower" in amtool("alert", "query", "-o", "extended")

    add = ("silence", "add", "--author", "ann", "--comment", "new cooling", "--duration", "2h")
    silence = amtool(*add, "node=gpu-0001", "source=slowrank").strip()
    assert silence.startswith("sil_")
    assert alerts(amtool, "--silenced") == {"gpu-0001": "suppressed"}
    assert alerts(amtool) == {"gpu-0002": "active"}
    [read] = json.loads(amtool("silence", "query", "-o", "json", "node=gpu-0001"))
    assert (read["id"], read["comment"], read["status"]["state"]) == (silence, "new cooling", "active")
    assert read["createdBy"].startswith("ann (")

    assert amtool("silence", "update", "--comment", "done tomorrow", silence)
    [read] = json.loads(amtool("silence", "query", "-o", "json"))
    assert (read["id"], read["comment"]) == (silence, "done tomorrow")
    amtool("silence", "expire", silence)
    assert json.loads(amtool("silence", "query", "-o", "json")) == []
    assert alerts(amtool) == {"gpu-0001": "active", "gpu-0002": "active"}
    regex = amtool(*add, "node=~gpu-000[12]").strip()
    assert set(alerts(amtool, "--silenced")) == {"gpu-0001", "gpu-0002"}
    amtool("silence", "expire", regex)


def test_amtool_takes_the_key_as_password_and_is_refused_without(amtool, token, save_finding):
    """Basic authentication of its configuration; no key, and a label that no finding has, are errors."""
    save_finding(node="gpu-0001")
    basic = f"basic_auth: {{username: ann, password: {token}}}"
    assert json.loads(amtool("alert", "query", "-o", "json", config=basic))[0]["labels"]["node"] == "gpu-0001"
    amtool("cluster", "show")
    assert "receiver: slowrank" in amtool("config", "show")
    assert "401" in amtool("alert", "query", config="", fails=True)
    refused = amtool("silence", "add", "-a", "a", "-c", "c", "no_such_label=1", fails=True)
    assert "422" in refused
