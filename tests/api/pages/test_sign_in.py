"""Browsers sign in with a key or a one-time link, and out; forms of other sites change nothing."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from api.security.auth import SCOPES
from api.security.sessions import COOKIE
from store.access import keys, sessions


def set_cookies(answer):
    return {line.partition("=")[0]: line.lower() for line in answer.headers.get_list("set-cookie")}


def test_a_key_opens_a_session_and_leads_back(visitor, new_token):
    """The cookie is HttpOnly and SameSite=Strict, and the page asked for follows."""
    answer = visitor.sign_in(new_token("findings:read"), to="/findings?status=all")
    assert (answer.status_code, answer.headers["location"]) == (303, "/findings?status=all")
    cookie = set_cookies(answer)[COOKIE]
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/" in cookie
    assert visitor.get("/findings").status_code == 200


@pytest.mark.parametrize("token", ["", "srk_abc_def", "x" * 5000, "<script>", "\x00\r\nset-cookie: a=b"])
def test_what_is_no_key_opens_nothing(visitor, token):
    """401, the form again, and no session."""
    answer = visitor.sign_in(token)
    assert answer.status_code == 401
    assert "this key is not valid" in answer.text
    assert COOKIE not in set_cookies(answer)
    assert "<script>" not in answer.text


@pytest.mark.parametrize(
    "to", ["//evil.example", "https://evil.example", "/\\evil.example", "/a\r\nb: c", "x"]
)
def test_it_leads_to_no_other_site(visitor, new_token, to):
    """Only paths of this site follow a sign-in."""
    assert visitor.sign_in(new_token("findings:read"), to=to).headers["location"] == "/"


def test_another_site_cannot_sign_a_browser_in(visitor, new_token):
    """The form's field must match the cookie that came with it."""
    token = new_token("findings:read")
    visitor.get("/sign-in")
    for form in ("", "guessed"):
        assert visitor.post("/sign-in", {"key": token, "form": form}).status_code == 403
    visitor.cookies.clear()
    assert visitor.post("/sign-in", {"key": token, "form": ""}).status_code == 403


@pytest.mark.parametrize("value", ['"a\\012set-cookie: b=c"', "x" * 5000, '"<script>"'])
def test_a_cookie_that_is_not_ours_is_not_repeated(visitor, value):
    """The value of the form is replaced, so that nothing else is written into a header or the page."""
    answer = visitor.get("/sign-in", headers={"cookie": f"slowrank_form={value}"})
    assert answer.status_code == 200
    cookie = set_cookies(answer)["slowrank_form"]
    assert re.fullmatch(r"slowrank_form=[a-z0-9_-]{22}", cookie.partition(";")[0])
    assert value.strip('"')[:20] not in answer.text


def test_who_guesses_keys_is_slowed_down(visitor):
    """As at the API: 20 wrong keys at once, then one a second."""
    form = visitor.field("/sign-in", "form")
    codes = [visitor.post("/sign-in", {"key": "srk_a_b", "form": form}).status_code for _ in range(22)]
    assert (codes[0], codes[-1]) == (401, 429)


def test_sign_out_ends_the_session(signed_in):
    """Also for whoever has copied the cookie."""
    browser = signed_in()
    stolen = dict(browser.cookies)
    assert browser.submit("/sign-out").status_code == 303
    assert browser.cookies[COOKIE] == ""
    browser.cookies = stolen
    assert browser.get("/findings").status_code == 401


def test_a_session_ends_with_its_key_and_after_its_life(signed_in, pool, app):
    """Revoking the key, or twelve hours."""
    browser, other = signed_in(), signed_in()
    with pool.connection() as conn:
        first, second = keys.listed(conn)
        assert keys.revoke(conn, first.id, datetime.now(UTC))
        later = datetime.now(UTC) + timedelta(hours=12, seconds=1)
        assert sessions.key_of(conn, other.cookies[COOKIE], datetime.now(UTC)) == second
        assert sessions.key_of(conn, other.cookies[COOKIE], later) is None
    assert browser.get("/findings").status_code == 401
    assert other.get("/findings").status_code == 200


def test_the_cookie_is_secure_behind_tls(settings, client, new_token):
    """When the public address is https and the browser has used it."""
    from api.app import create_app

    tests = {"https://slowrank.example.org": True, "http://slowrank.example.org": False}
    for public, secure in tests.items():
        app = create_app(settings.model_copy(update={"public_url": public}), client._app.state.services.pool)
        answer = type(client)(app).get(
            "/sign-in", headers={"host": "slowrank.example.org", "accept": "text/html"}
        )
        assert ("secure" in set_cookies(answer)["slowrank_form"]) is secure


def one_time(pool, new_token, *scopes):
    with pool.connection() as conn:
        new_token(*scopes)
        return sessions.create(conn, keys.listed(conn)[-1].id, "sign_in", datetime.now(UTC))


def test_a_one_time_link_signs_in_once(visitor, client_with, pool, new_token):
    """It leads to its page; the second browser gets nothing; it is no session itself."""
    link = one_time(pool, new_token, *SCOPES)
    visitor.cookies = {COOKIE: link}
    assert visitor.get("/findings").status_code == 401
    visitor.cookies = {}
    answer = visitor.get(f"/sign-in/{link}?next=/findings")
    assert (answer.status_code, answer.headers["location"]) == (303, "/findings")
    assert visitor.get("/findings").status_code == 200
    assert visitor.get(f"/sign-in/{link}?next=/findings").status_code == 303
    again = client_with().get(f"/sign-in/{link}", headers={"accept": "text/html"})
    assert again.status_code == 401
    assert "has been used or has expired" in again.text


def test_a_one_time_link_expires(pool, new_token):
    """After ten minutes it opens nothing, and is used up by the attempt."""
    link = one_time(pool, new_token, "findings:read")
    with pool.connection() as conn:
        later = datetime.now(UTC) + timedelta(minutes=10, seconds=1)
        assert sessions.redeem(conn, link, later) is None
        assert sessions.redeem(conn, link, datetime.now(UTC)) is None


def test_a_cookie_reads_the_api_and_changes_nothing(signed_in, save_finding):
    """Scripts of the pages read the API by the cookie; a change needs a key or the CSRF token of a form."""
    browser, finding = signed_in(), save_finding()
    path = f"/api/v1/findings/{finding.id}"
    assert browser.get(path).status_code == 200
    for method in ("PATCH", "DELETE"):
        assert browser.send(method, path, json={"status": "resolved"}).status_code in (401, 405)
    assert browser.send("POST", f"{path}/feedback", json={"verdict": "benign"}).status_code == 401
    assert browser.send("POST", "/api/v1/keys", json={"name": "x", "scopes": ["all"]}).status_code == 401


def test_expired_sessions_are_removed(pool, new_token):
    """A new sign-in removes what has expired, so that the table stays small."""
    new_token("findings:read")
    with pool.connection() as conn:
        key_id, now = keys.listed(conn)[0].id, datetime.now(UTC)
        sessions.create(conn, key_id, "session", now - timedelta(hours=13))
        sessions.create(conn, key_id, "sign_in", now)
        assert conn.execute("SELECT count(*) FROM sessions").fetchone() == (1,)


def test_no_token_is_stored(pool, new_token):
    """The table has digests only."""
    link = one_time(pool, new_token, "findings:read")
    with pool.connection() as conn:
        assert link not in str(conn.execute("SELECT * FROM sessions").fetchall())
