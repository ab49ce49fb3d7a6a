"""Browsers: clients that are signed in by a cookie and send forms as a page does."""

import re
from urllib.parse import urlencode

import pytest

from api.security.auth import SCOPES

HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


class Browser:
    """A client that accepts HTML and keeps cookies."""

    def __init__(self, client):
        self._client = client
        self.cookies = {}

    def send(self, method, path, *, headers=None, **options):
        jar = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        sent = HTML | ({"cookie": jar} if jar else {}) | (headers or {})
        answer = self._client.request(method, path, headers=sent, **options)
        for line in answer.headers.get_list("set-cookie"):
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies[name] = value.strip('"')
        return answer

    def get(self, path, **options):
        return self.send("GET", path, **options)

    def post(self, path, fields, **options):
        return self.send("POST", path, content=urlencode(fields), headers=FORM, **options)

    def field(self, path, name):
        """Return the value of a hidden field on a page."""
        found = re.search(f'name="{name}" value="([^"]*)"', self.get(path).text)
        assert found, f"no field {name} on {path}"
        return found[1]

    def sign_in(self, token, to="/"):
        form = self.field("/sign-in", "form")
        return self.post("/sign-in", {"key": token, "form": form, "next": to})

    def submit(self, path, **fields):
        """Send a form with the CSRF token of this session."""
        return self.post(path, {"csrf": self.field("/", "csrf"), **fields})


@pytest.fixture
def visitor(client_with):
    """A browser that is not signed in."""
    return Browser(client_with())


@pytest.fixture
def signed_in(client_with, new_token):
    """Browsers that are signed in: ``signed_in(*scopes, clusters=…)``; without scopes with all."""

    def make(*scopes, **fields):
        browser = Browser(client_with())
        answer = browser.sign_in(new_token(*(scopes or SCOPES), **fields))
        assert answer.status_code == 303, answer.text
        return browser

    return make
