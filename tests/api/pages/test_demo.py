"""The form of the demo that breaks something in its simulated cluster."""

import numpy as np
import pytest

from api.app import create_app
from cli.run.demo_breakage import Breakage
from cli.run.demo_scenario import draw
from tests.api.conftest import Client
from tests.api.pages.conftest import Browser


@pytest.fixture
def breakage():
    """What can be broken in a cluster that has not run yet."""
    return Breakage(draw(7, start=1_795_160_400.0), np.random.default_rng(7))


@pytest.fixture
def demo_visitor(settings, pool, breakage, new_token):
    """A browser signed in to an app with that cluster: ``demo_visitor(*scopes)``."""

    def make(*scopes):
        browser = Browser(Client(create_app(settings, pool, breakable=breakage), None))
        browser.sign_in(new_token(*scopes))
        return browser

    return make


def test_the_page_breaks_what_is_chosen_and_shows_it(demo_visitor, breakage, add_nodes):
    """The button's name reaches the cluster's thread, and what it has become is listed."""
    add_nodes("n1")
    browser = demo_visitor("findings:read", "findings:write", "telemetry:read")
    assert '<button name="what" value="hang" data-key="3">' in browser.get("/").text
    answer = browser.submit("/demo/break", what="hang")
    assert (answer.status_code, answer.headers["location"]) == (303, "/#break")
    breakage.apply(50.0)
    (begun,) = breakage.begun()
    shown = browser.get("/fleet-now").text
    assert begun.title in shown
    assert "not found yet" in shown


def test_what_is_unknown_or_broken_already_is_refused(demo_visitor, breakage):
    """Both are a conflict that says what to choose; the cluster stays as it was."""
    browser = demo_visitor("findings:read", "findings:write")
    unknown = browser.submit("/demo/break", what="everything")
    assert (unknown.status_code, "thermal, nic, hang" in unknown.text) == (409, True)
    browser.submit("/demo/break", what="switch")
    breakage.apply(50.0)
    again = browser.submit("/demo/break", what="switch")
    assert (again.status_code, "broken already, for another" in again.text) == (409, True)
    assert len(breakage.begun()) == 1


def test_reading_is_not_enough_and_neither_is_another_page(demo_visitor, breakage):
    """Without the scope to write and without the session's token the form is refused, and not offered."""
    reader = demo_visitor("findings:read", "telemetry:read")
    assert "Break something" not in reader.get("/").text
    assert reader.submit("/demo/break", what="hang").status_code == 403
    writer = demo_visitor("findings:read", "findings:write")
    assert writer.post("/demo/break", {"what": "hang", "csrf": "x"}).status_code == 403
    breakage.apply(50.0)
    assert not breakage.begun()


def test_outside_of_a_demo_nothing_can_be_broken(signed_in, add_nodes):
    """A real cluster has no such form, and its address is not found."""
    add_nodes("n1")
    browser = signed_in()
    assert "Break something" not in browser.get("/").text
    assert browser.submit("/demo/break", what="hang").status_code == 404
