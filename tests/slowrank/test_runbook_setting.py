"""The address of runbooks: the API's, or one of the operator's own that names the kind."""

import pytest
from pydantic import ValidationError

from slowrank.settings import Settings


def test_without_a_setting_they_are_those_of_the_api():
    """Under the address that people use."""
    assert Settings(public_url="https://s.example/").runbooks() == "https://s.example/runbooks/{kind}"
    own = "https://wiki.example/gpu/{kind}.html"
    assert Settings(runbook_url=own).runbooks() == own


@pytest.mark.parametrize(
    "url", ["https://h/runbooks", "javascript:alert({kind})", "https://h/{kind}{x}", "ftp://h/{kind}"]
)
def test_an_address_that_cannot_be_a_link_is_refused(url):
    """It is sent in every alert."""
    with pytest.raises(ValidationError, match=r"must be a URL with \{kind\}"):
        Settings(runbook_url=url)
