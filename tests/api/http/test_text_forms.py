"""A text of the wrong form is refused with the right one, in words."""

import pytest


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("GET", "/api/v1/findings/fnd_nope", None, "`slowrank findings list -o wide` shows them"),
        ("POST", "/api/v1/webhooks", {"url": "not-a-url"}, "such as https://hooks.example.org/gpu"),
        (
            "POST",
            "/api/v1/webhooks",
            {"url": "https://hooks.example.org", "kinds": ["A b"]},
            "such as straggler.fail_slow",
        ),
        ("GET", "/api/v1/timeline?since=5", None, "such as 30m, 2h or 7d"),
        ("GET", "/api/v2/alerts?filter=node", None, 'such as node="n1"'),
        (
            "POST",
            "/api/v1/keys",
            {"name": "x", "scopes": ["all"], "clusters": ["a b"]},
            "at most 128 letters",
        ),
    ],
)
def test_a_refusal_names_the_form_and_quotes_no_pattern(client, method, path, body, expected):
    """The pattern stays in the document of the API, for programs."""
    answer = client.request(method, path, json=body)
    assert answer.status_code == 422
    detail = answer.json()["detail"]
    assert expected in detail
    assert not {"^", "$", "pattern", "Value error"} & set(detail.split()), detail
    assert "[A-Z" not in detail


def test_an_unknown_kind_is_refused_with_those_that_are(client, save_finding):
    """Not answered with an empty list, as if nothing were slow; numbered and known kinds are taken."""
    save_finding()
    for known in ("straggler.fail_slow", "xid.79", "throttle.board", "straggler"):
        assert client.get("/api/v1/findings", params={"kind": known}).status_code == 200
    for unknown in ("nope", "nope.board", "Straggler"):
        refused = client.get("/api/v1/findings", params={"kind": unknown})
        assert refused.status_code == 409
        assert "straggler.fail_slow" in refused.json()["detail"]
