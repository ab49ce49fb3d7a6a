"""The API does what its OpenAPI document says, and the document says what the API does."""

import pytest

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
