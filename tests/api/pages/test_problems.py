"""What a browser is shown at an address that is wrong: a page, and never JSON."""

import pytest


@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("/nosuch", 404, "there is nothing at this address"),
        ("/jobs/nosuch", 404, "there is nothing at this address"),
        ("/sign-out", 405, "Method Not Allowed"),
        ("/findings/fnd_x", 404, "the address has no valid finding id: was it cut off when it was copied?"),
        ("/job?cluster=c", 422, "the address lacks &#39;job_id&#39;; go back and follow a link instead"),
        ("/job?cluster=c&job_id=j&since=3y", 422, "has a &#39;since&#39; that this page does not take"),
    ],
)
def test_a_wrong_address_is_a_page(signed_in, path, status, detail):
    """It says what is wrong with the address, and asks nobody who is signed in to do so again."""
    answer = signed_in().get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")
    assert detail in answer.text
    assert "Sign in" not in answer.text


@pytest.mark.parametrize(
    ("path", "headers"),
    [("/nosuch", {"accept": "*/*"}), ("/api/v1/nosuch", {}), ("/api/v2/nosuch", {})],
)
def test_a_program_and_the_api_get_json(visitor, path, headers):
    """RFC 9457, whatever a browser accepts at an address of the API."""
    answer = visitor.get(path, headers=headers)
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("application/problem+json")
    assert answer.json()["detail"] == "there is nothing at this address"
