"""Pages of other origins: only those that the operator names, and never with a cookie."""

import pytest
from pydantic import ValidationError

from api.app import create_app
from slowrank.settings import Settings

ORIGIN = "https://grafana.example.org"
PREFLIGHT = {
    "origin": ORIGIN,
    "access-control-request-method": "GET",
    "access-control-request-headers": "authorization",
}


@pytest.fixture
def open_client(client, settings, pool):
    """A client of an API that one other origin may call."""
    api = type(client)(create_app(settings.model_copy(update={"api_cors_origins": (ORIGIN,)}), pool))
    api.headers = client.headers
    return api


def test_a_named_origin_may_ask(open_client):
    """The preflight needs no key; the answer may be read, with the headers that a client needs."""
    anonymous = type(open_client)(open_client._app)
    allowed = anonymous.request("OPTIONS", "/api/v1/findings", headers=PREFLIGHT)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == ORIGIN
    answer = open_client.get("/api/v1/findings", headers={"origin": ORIGIN})
    assert answer.headers["access-control-allow-origin"] == ORIGIN
    assert "etag" in answer.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in answer.headers


def test_an_error_may_be_read_as_well(open_client):
    """A problem without the header would be an opaque failure to the page."""
    anonymous = type(open_client)(open_client._app)
    answer = anonymous.get("/api/v1/findings", headers={"origin": ORIGIN})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == ORIGIN


@pytest.mark.parametrize("origin", ["https://evil.example.org", "null", f"{ORIGIN}.evil.org"])
def test_other_origins_may_not(open_client, origin):
    """Neither the preflight nor the answer names them."""
    refused = open_client.request("OPTIONS", "/api/v1/findings", headers=PREFLIGHT | {"origin": origin})
    assert refused.status_code == 400
    answer = open_client.get("/api/v1/findings", headers={"origin": origin})
    assert "access-control-allow-origin" not in answer.headers


def test_without_the_setting_nobody_may(client):
    """The default has no cross-origin header at all."""
    answer = client.get("/api/v1/findings", headers={"origin": ORIGIN})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert client.request("OPTIONS", "/api/v1/findings", headers=PREFLIGHT).status_code == 405


@pytest.mark.parametrize(
    "origin", ["*", "grafana.example.org", "https://a.org/", "https://a.org/x", "null", ""]
)
def test_what_is_no_origin(origin):
    """A wildcard or a path is refused when the process starts."""
    with pytest.raises(ValidationError, match="origins such as"):
        Settings(api_cors_origins=(origin,))
