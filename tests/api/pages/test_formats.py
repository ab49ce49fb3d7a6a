"""Numbers, times and addresses as people read them."""

import pytest

from api.pages import formats


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59, "59 s"), (61, "1 min 01 s"), (7500, "2 h 05 min"), (90000, "1 d 1 h"), (-5, "0 s")],
)
def test_a_duration_has_its_two_largest_units(seconds, text):
    """Never negative, as clocks of two machines differ."""
    assert formats.duration(seconds) == text


@pytest.mark.parametrize("url", ["javascript:alert(1)", "data:text/html,x", "//x", "", None, "ftp://x"])
def test_only_web_addresses_become_links(url):
    """A runbook's address may come from a settings file, and never runs a script."""
    assert formats.web_link(url) == ""
    assert formats.web_link("https://docs.example.org/x") == "https://docs.example.org/x"


def test_a_time_is_utc_and_marked_up():
    """Offsets are converted; the element has the machine's form."""
    shown = formats.moment("2026-11-20T09:32:40+02:00")
    assert shown == '<time datetime="2026-11-20T07:32:40Z">2026-11-20 07:32:40 UTC</time>'
    assert formats.clock(None) == "–"


def test_prose_is_escaped_inside_and_outside_of_code():
    """Of one or two backticks, as docstrings have them."""
    shown = formats.prose("a <b> `c <d>` ``e`` f")
    assert shown == "a &lt;b&gt; <code>c &lt;d&gt;</code> <code>e</code> f"
