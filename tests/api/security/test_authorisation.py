"""Every route with every kind of credential: who gets in follows from the scope that the route declares."""

import re
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute

from api.app import ROUTERS, openapi_document
from api.security.auth import SCOPES, scope_of
from api.security.links import LIFE, finding_link
from api.security.sessions import COOKIE, csrf_token
from store.access import sessions
from store.access.link_key import link_key

# What answers without a key, and how: probes, the form to sign in, files of pages, runbooks, and what ends a
# session.
OPEN = {
    ("GET", "/healthz"): 200,
    ("GET", "/readyz"): 200,
    ("GET", "/version"): 200,
    ("GET", "/sign-in"): 200,
    ("GET", "/runbooks"): 200,
    ("GET", "/runbooks/{kind}"): 404,
    ("GET", "/static/{name}"): 404,
    ("POST", "/sign-in"): 403,
    ("POST", "/sign-out"): 303,
}
ANY_KEY = {
    ("GET", "/api/v1/schemas/finding.v1.json"),
    ("GET", "/api/v1/openapi.json"),
    ("GET", "/docs"),
}
# These ask for the scope themselves: one shows the form to sign in instead, the others open to a link, too.
FLEET = ("GET", "/")
LINKED = {("GET", "/findings/{finding_id}"), ("GET", "/findings/{finding_id}/evidence.json")}
ASKS_ITSELF = dict.fromkeys([FLEET, *LINKED], "findings:read")
# The one-time link is the credential.
ONE_TIME = ("GET", "/sign-in/{token}")
REFUSED = (401, 403)


def required(route):
    """Return what a route asks for: "open", "key", or a scope. Raises where it declares nothing."""
    for method in route.methods:
        at = (method, route.path_format)
        if at in OPEN:
            return "open"
        if at in ANY_KEY:
            return "key"
        scope = ASKS_ITSELF.get(at) or scope_of(route.dependant)
        assert scope in SCOPES, f"{method} {route.path_format} declares no scope"
        return scope
    raise AssertionError(route.path_format)


def routes():
    """Every (method, path, what it asks for), from the routers themselves and not from what they document."""
    made = [route for router in ROUTERS for route in router.routes]
    found = [route for route in made if isinstance(route, APIRoute)]
    assert len(found) == len(made)
    return sorted(
        (m, r.path_format, required(r))
        for r in found
        for m in r.methods or ()
        if (m, r.path_format) != ONE_TIME
    )


def is_form(method, path):
    """Whether it is what a page sends: changes something, and is no part of the API."""
    return method != "GET" and not path.startswith(("/api/", "/v1/"))


@pytest.mark.parametrize("body", [b"{", b"[" * 60_000], ids=["no JSON", "too deep"])
def test_a_body_is_not_judged_without_a_key(client_with, client, body):
    """Whoever has none learns nothing about what a route takes: 401 comes before 400 and 422."""
    for path in ("keys", "silences", "webhooks", "inhibitions", "ingest/alertmanager", "findings/x/feedback"):
        at = f"/api/v1/{path}"
        json = {"content-type": "application/json"}
        assert client_with().post(at, content=body, headers=json).status_code == 401, path
        assert client.post(at, content=body, headers=json).status_code in (400, 422), path


def test_a_route_without_a_scope_is_found():
    """One that is added without saying who may use it fails here and not in production."""
    router = APIRouter()
    router.add_api_route("/api/v1/new", lambda: None, methods=["GET"])
    with pytest.raises(AssertionError, match="GET /api/v1/new declares no scope"):
        required(router.routes[0])


def test_every_route_is_asked(app):
    """The enumeration misses no route of the app, and none of its document, which names the scopes."""
    assert [route for route in app.routes if hasattr(route, "endpoint")] == []
    assert len(app.routes) == len(ROUTERS)
    known = {(method, path): needs for method, path, needs in routes()}
    documented = {
        (method.upper(), path): {role for one in keys for roles in one.values() for role in roles}
        for path, item in openapi_document()["paths"].items()
        for method, operation in item.items()
        for keys in [operation.get("security", [])]
    }
    assert len(documented) > 50
    for at, roles in documented.items():
        assert roles == {known[at]} - {"open", "key"}, at
    assert {needs for needs in known.values() if needs not in ("open", "key")} == set(SCOPES)


@pytest.fixture
def the_finding(save_finding):
    """The id of the finding that is asked for."""
    return save_finding().id


@pytest.fixture
def asked(app, client_with, the_finding):
    """Send one request with only the given credentials; the finding in its path exists."""
    anonymous = client_with()

    def ask(method, path, *, headers=None, fields=None, query=None):
        app.state.services.limiter.forget()
        url = re.sub(r"\{\w+\}", the_finding, path)
        if not is_form(method, path):
            return anonymous.request(method, url, headers=headers, params=query, json={}).status_code
        form = {"content-type": "application/x-www-form-urlencoded"} | (headers or {})
        body = urlencode(fields or {})
        return anonymous.request(method, url, headers=form, params=query, content=body).status_code

    return ask


@pytest.fixture
def session(pool, new_token):
    """Return the token of a session whose key has these scopes."""

    def make(*scopes):
        key_id = new_token(*scopes).split("_")[1]
        with pool.connection() as conn:
            return sessions.create(conn, key_id, "session", datetime.now(UTC))

    return make


def endless(path, needs, scope):
    """Whether the answer, as it is one, never ends."""
    return path.endswith("/stream") and needs == scope


def test_without_a_credential(asked):
    """401, except where anyone may ask; the fleet shows the form to sign in."""
    for method, path, needs in routes():
        expected = OPEN[method, path] if needs == "open" else 200 if (method, path) == FLEET else 401
        assert asked(method, path) == expected, (method, path)
        if expected == 401:
            assert asked(method, path, query={"nonsense": "1"}) == 401, (method, path)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_key_opens_what_declares_its_scope(asked, new_token, scope):
    """Also the forms of pages, for which it needs no CSRF token; everything else is 403."""
    headers = {"authorization": f"Bearer {new_token(scope)}"}
    for method, path, needs in routes():
        if needs == "open" or endless(path, needs, scope):
            continue
        status = asked(method, path, headers=headers)
        if needs in ("key", scope):
            assert status not in REFUSED, (method, path, status)
        else:
            assert status == 403, (method, path)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_cookie_opens_what_its_key_may_read(asked, session, scope):
    """Without the CSRF token a form is refused, and with it the API still takes no change."""
    token = session(scope)
    headers = {"cookie": f"{COOKIE}={token}"}
    for method, path, needs in routes():
        if needs == "open" or (method == "GET" and endless(path, needs, scope)):
            continue
        status = asked(method, path, headers=headers)
        if method != "GET":
            assert status == (403 if is_form(method, path) else 401), (method, path)
            status = asked(method, path, headers=headers, fields={"csrf": csrf_token(token)})
            if not is_form(method, path):
                assert status == 401, (method, path)
                continue
        if needs in ("key", scope):
            assert status not in REFUSED, (method, path, status)
        else:
            assert status == 403, (method, path)


def test_a_form_of_another_session_is_refused(asked, session):
    """Whatever its scope: the CSRF token is that of one session."""
    headers, other = {"cookie": f"{COOKIE}={session(*SCOPES)}"}, csrf_token(session(*SCOPES))
    forms = [(method, path) for method, path, needs in routes() if is_form(method, path) and needs != "open"]
    assert len(forms) > 8
    for method, path in forms:
        assert asked(method, path, headers=headers, fields={"csrf": other}) == 403, (method, path)


@pytest.mark.parametrize("kind", ["this", "another", "expired"])
def test_a_link_opens_the_page_of_its_finding(asked, the_finding, pool, save_finding, kind):
    """With its plots, and nothing else, neither its forms nor the API."""
    finding = save_finding(node="other").id if kind == "another" else the_finding
    at = datetime.now(UTC) - (LIFE + timedelta(seconds=2) if kind == "expired" else timedelta())
    with pool.connection() as conn:
        link = finding_link("http://slowrank.example.org", finding, key=link_key(conn), at=at)
    query = {name: values[0] for name, values in parse_qs(urlsplit(link).query).items()}
    assert set(query) == {"t"}
    for method, path, needs in routes():
        if needs == "open" or (method, path) == FLEET:
            continue
        opens = kind == "this" and (method, path) in LINKED
        status = asked(method, path, query=query)
        # The API refuses a parameter that it does not know before it asks who sent it.
        assert status == 200 if opens else status in (401, 422), (method, path, status)
