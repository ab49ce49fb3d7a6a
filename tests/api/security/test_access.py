"""Nobody gets in without a key of the right scope, whatever the route."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from fastapi.routing import APIRoute

from api.app import ROUTERS, create_app, openapi_document
from api.security.auth import SCOPES
from api.security.sessions import COOKIE
from store.access import sessions

# What answers without a key, and how: probes, the form to sign in, files of pages, runbooks, and what ends a
# session.
OPEN = {
    ("GET", "/healthz"): 200,
    ("GET", "/readyz"): 200,
    ("GET", "/version"): 200,
    ("GET", "/"): 200,
    ("GET", "/sign-in"): 200,
    ("GET", "/runbooks"): 200,
    ("GET", "/runbooks/{kind}"): 404,
    ("GET", "/static/{name:path}"): 404,
    ("POST", "/sign-in"): 403,
    ("POST", "/sign-out"): 303,
}
# The one-time link takes no key at all.
ANY_KEY = {
    ("GET", "/api/v1/schemas/finding.v1.json"),
    ("GET", "/api/v1/openapi.json"),
    ("GET", "/sign-in/{token}"),
    ("GET", "/docs"),
}
FND = "fnd_01JD7Q4Y6R8V2M3K5N9P0S1T2W"


def routes(app):
    """Every (method, path) the app answers, from the routers themselves and not from what they document."""
    beside_routers = [route for route in app.routes if hasattr(route, "endpoint")]
    assert beside_routers == []
    assert len(app.routes) == len(ROUTERS)
    assert all(isinstance(route, APIRoute) for router in ROUTERS for route in router.routes)
    found = [route for router in ROUTERS for route in router.routes]
    return sorted({(m, r.path) for r in found if isinstance(r, APIRoute) for m in r.methods or ()})


def filled(path):
    return re.sub(r"\{\w+(:path)?\}", FND, path)


def test_every_documented_route_is_known(app):
    """The enumeration below misses no route of the OpenAPI document."""
    documented = {
        (method.upper(), path) for path, item in openapi_document()["paths"].items() for method in item
    }
    assert documented <= set(routes(app))
    assert len(documented) > 25


def test_no_route_answers_without_a_key(app, client_with):
    """Every route that is not open says 401 as a problem, with a challenge."""
    anonymous = client_with()
    for method, path in routes(app):
        app.state.services.limiter.forget()
        answer = anonymous.request(method, filled(path))
        if (method, path) in OPEN:
            assert answer.status_code == OPEN[method, path], (method, path)
            continue
        assert answer.status_code == 401, (method, path, answer.text)
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.headers["content-type"] == "application/problem+json"


def test_no_route_answers_to_a_key_without_its_scope(app, client_with):
    """For every route exactly one scope opens it; a key with all the others gets 403."""
    for method, path in routes(app):
        if (method, path) in OPEN.keys() | ANY_KEY:
            continue
        refusing = []
        # An accepted stream never ends: of its scopes only the refusing one is asked.
        for scope in ["findings:read"] if path.endswith("/stream") else SCOPES:
            others = client_with(*(s for s in SCOPES if s != scope))
            if others.request(method, filled(path), json={}).status_code == 403:
                refusing.append(scope)
        assert len(refusing) == 1, (method, path, refusing)


def session(pool, new_token, *scopes):
    """Return the cookie header of a session whose key has these scopes."""
    key_id = new_token(*scopes).split("_")[1]
    with pool.connection() as conn:
        return {"cookie": f"{COOKIE}={sessions.create(conn, key_id, 'session', datetime.now(UTC))}"}


def test_a_cookie_opens_what_its_key_may_read_and_changes_nothing(app, client_with, pool, new_token):
    """For reading as the key of its session; every other method without the CSRF token is refused."""
    anonymous = client_with()
    every = session(pool, new_token, *SCOPES)
    one = {scope: session(pool, new_token, *(s for s in SCOPES if s != scope)) for scope in SCOPES}
    for method, path in routes(app):
        app.state.services.limiter.forget()
        if (method, path) in OPEN.keys() | ANY_KEY and method == "GET":
            continue
        if method != "GET":
            answer = anonymous.request(method, filled(path), headers=every)
            assert answer.status_code in (401, 403), (method, path)
            continue
        if not path.endswith("/stream"):
            answer = anonymous.get(filled(path), headers=every)
            assert answer.status_code not in (401, 403), (method, path, answer.text)
        asked = [one["findings:read"]] if path.endswith("/stream") else one.values()
        codes = [anonymous.get(filled(path), headers=cookie).status_code for cookie in asked]
        assert codes.count(403) == 1, (path, codes)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic dXNlcjpwYXNz",
        "Bearer",
        "Bearer ",
        "Bearer srk_",
        "Bearer srk_abc_def",
        "Bearer x" + "y" * 5000,
        "Bearer srk_'; drop table api_keys; --_x",
        "Bearer srk_\u00e9_\u00e9",
    ],
)
def test_what_is_no_key(client_with, header):
    """Nonsense in Authorization is 401, never an error."""
    answer = client_with().get("/api/v1/findings", headers={"authorization": header.encode("latin-1")})
    assert answer.status_code == 401


def test_a_wrong_secret_a_revoked_and_an_expired_key(app, client_with, new_token):
    """Only the genuine, living key opens."""
    token = new_token("findings:read")
    forged = token[:-1] + ("0" if token[-1] != "0" else "1")
    expired = new_token("findings:read", expires_at=datetime.now(UTC) - timedelta(seconds=1))
    for given, status in ((token, 200), (forged, 401), (expired, 401)):
        anonymous = client_with()
        answer = anonymous.get("/api/v1/findings", headers={"authorization": f"Bearer {given}"})
        assert answer.status_code == status


def test_metrics_open_by_setting_only(settings, pool, client_with, client):
    """/metrics needs metrics:read unless the operator says otherwise."""
    assert client_with("metrics:read").get("/metrics").status_code == 200
    public = create_app(settings.model_copy(update={"api_metrics_public": True}), pool)
    anonymous = type(client)(public)
    assert b"slowrank_build_info" in anonymous.get("/metrics").content
    assert anonymous.get("/api/v1/findings").status_code == 401


@pytest.fixture
def standing_clock(app):
    """No time passes for the rates, however long the requests take: no token comes back."""
    app.state.services = replace(app.state.services, monotonic=lambda: 0.0)


@pytest.mark.usefixtures("standing_clock")
def test_a_key_has_a_rate(client_with):
    """A key may read 60 times at once and is then told when to come again."""
    reader = client_with("findings:read")
    codes = [reader.get("/api/v1/schemas/finding.v1.json").status_code for _ in range(90)]
    assert codes == [200] * 60 + [429] * 30
    limited = reader.get("/api/v1/schemas/finding.v1.json")
    assert int(limited.headers["retry-after"]) >= 1
    assert limited.headers["ratelimit"] == '"r";r=0;t=3'
    assert limited.headers["ratelimit-policy"] == '"r";q=60;w=3'


@pytest.mark.usefixtures("standing_clock")
def test_guessing_keys_has_a_rate(client_with):
    """Failed keys from one address run into 429 after 20."""
    guesser = client_with()
    codes = [
        guesser.get("/api/v1/findings", headers={"authorization": f"Bearer srk_x_{i}"}).status_code
        for i in range(25)
    ]
    assert set(codes[:20]) == {401}
    assert 429 in codes


def test_people_are_named_by_their_keys(app, new_token, save_finding, client_with):
    """Whoever acknowledges is served by the key's name, in the finding, its history and the audit log."""
    finding, writer = save_finding(), client_with("findings:read", "findings:write")
    url = f"/api/v1/findings/{finding.id}"
    done = writer.patch(url, json={"status": "acknowledged"}, headers={"if-match": "*"}).json()
    assert done["acknowledged"]["by"] == "test"
    assert done["history"][-1]["actor"] == "test"
    entry = client_with("keys:admin").get("/api/v1/audit").json()["items"][0]
    assert entry["actor"] == "test"
    assert entry["key_id"] == writer.headers["authorization"].split("_")[1]
