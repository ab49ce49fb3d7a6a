"""The API does what its OpenAPI document says, and the document says what the API does."""

import json
import os
import socket
import subprocess
import sysconfig
import threading

import pytest

from api.app import create_app
from api.http.connections import server
from api.http.limits import Rate
from api.security.auth import SCOPES

METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}


def documented(app):
    """Return by path of the document its methods, HEAD wherever GET is."""
    paths = app.openapi()["paths"]
    found = {path: {method.upper() for method in operations} for path, operations in paths.items()}
    return {path: methods | ({"HEAD"} if "GET" in methods else set()) for path, methods in found.items()}


def test_a_method_that_is_not_there_names_those_that_are(client, app):
    """`Allow` of a 405 has every method of the path, those of other routes under the same path too."""
    for path, methods in documented(app).items():
        url = path.replace("{finding_id}", "fnd_00000000000000000000000000").replace("{", "").replace("}", "")
        for method in METHODS - methods:
            answer = client.request(method, url)
            assert answer.status_code == 405, (method, url)
            assert set(answer.headers["allow"].split(", ")) == methods, (method, url)


@pytest.mark.parametrize("text", ["2000-01-01t00:00:00z", "2000-01-01T00:00:00+23:59", "-9999w", "-999999h"])
def test_every_time_that_the_document_allows_is_taken(client, text):
    """RFC 3339 with small letters and far offsets, and as far back as the pattern reaches."""
    assert client.get("/api/v1/findings", params={"from": text}).status_code == 200


HOOKS = """
import json
import schemathesis

@schemathesis.serializer("application/x-ndjson")
def ndjson(context, value):
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()
"""


@pytest.fixture
def served(settings, pool, sink, monkeypatch):
    """The URL of a real server and its document, without limits on how often one may ask."""

    async def unknown(host, port):
        raise OSError("no name is asked for outside of this machine")

    monkeypatch.setattr("api.routes.webhooks.resolve", unknown)
    for rate in ("READ", "WRITE", "FAILED_AUTH"):
        monkeypatch.setattr(f"api.security.auth.{rate}", Rate(1e6, 1e6))
    app = create_app(settings, pool, sink=sink, runs_backtests=True)
    serving = server(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serving.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", app.openapi()
        serving.should_exit = True
        thread.join(20)


UNDESCRIBED = "stream|/v1/write|^/v1/metrics"

# Paths that are tried one part after the other, so that each ends well within its limit; then the others.
PARTS = ("/findings|/jobs", "/webhooks", "/inhibitions|/silences?|/keys")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "included", "excluded"),
    [
        *(("coverage", part, UNDESCRIBED) for part in PARTS),
        ("coverage", ".*", "|".join((UNDESCRIBED, *PARTS))),
        ("fuzzing", ".*", UNDESCRIBED),
    ],
)
def test_schemathesis_passes_every_check(served, new_token, tmp_path, phase, included, excluded):
    """Seeded requests by the document, valid and not: every answer is one that the document allows.

    The stream has no end and is left out, and so are bodies that no schema describes, snappy and protobuf
    (tests/api/foreign); NDJSON is sent as the text that it is.
    """
    url, document = served
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    (tmp_path / "hooks.py").write_text(HOOKS)
    command = [
        f"{sysconfig.get_path('scripts')}/st",
        *("run", "openapi.json", "--url", url, "--checks", "all", "--phases", phase),
        *(
            "--max-examples",
            "5",
            "--seed",
            "1",
            "--include-path-regex",
            included,
            "--exclude-path-regex",
            excluded,
            "--continue-on-failure",
        ),
        *("--no-color", "-H", f"Authorization: Bearer {new_token(*SCOPES)}"),
    ]
    environment = os.environ | {"SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " 0 passed" not in done.stdout
