"""The pages of runbooks, which on-call people open from an alert without a key."""

import pytest


@pytest.mark.parametrize(("kind", "page"), [("throttle.thermal", "throttle.thermal"), ("xid.31", "xid")])
def test_a_runbook_is_shown_without_a_key(visitor, kind, page):
    """Under the name of the kind, or of the family that it belongs to."""
    answer = visitor.get(f"/runbooks/{kind}")
    assert answer.status_code == 200
    assert f"<h1>{page}</h1>" in answer.text
    assert "<strong>Confirm.</strong>" in answer.text
    # Runbooks do not read the session, so they show no link to sign in.
    assert '<a href="/">Fleet</a>' in answer.text
    assert 'href="/sign-in"' not in answer.text
    assert "default-src 'self'" in answer.headers["content-security-policy"]


def test_all_runbooks_are_listed(visitor):
    """Each with a link."""
    text = visitor.get("/runbooks").text
    assert '<a href="/runbooks/hang.job">hang.job</a>' in text


@pytest.mark.parametrize("kind", ["nothing", "%3Cscript%3Ealert(1)"])
def test_a_kind_without_a_runbook_is_not_found(visitor, kind):
    """Its name is shown as text."""
    answer = visitor.get(f"/runbooks/{kind}")
    assert answer.status_code == 404
    assert "<script>alert" not in answer.text
