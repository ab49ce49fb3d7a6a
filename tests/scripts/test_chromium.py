"""The driver of the browser that the pages are tested with."""

import pytest
from chromium import CHROMIUM, NavigatedError, chromium

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
]
# On the first page it goes to the second and never has a value.
LEAVE = "location.hash ? true : new Promise(() => { location.replace('second.html#arrived'); })"


@pytest.fixture
def first_page(tmp_path):
    for name in ("first", "second"):
        (tmp_path / f"{name}.html").write_text(f"<title>{name}</title>")
    with chromium(tmp_path / "profile") as page:
        page.open(f"file://{tmp_path}/first.html")
        yield page


def test_waiting_goes_on_when_the_page_gives_way(first_page):
    """A form that is sent destroys the page whose state a test is asking for."""
    first_page.wait_for(LEAVE)
    assert first_page.run("document.title") == "second"


def test_an_expression_without_a_value_is_an_error(first_page):
    with pytest.raises(NavigatedError):
        first_page.run(LEAVE)
