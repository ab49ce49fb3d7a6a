"""Renders templates to HTML responses with the headers that pages need."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from alerts.kinds import cause_name
from alerts.report.explanation import cause_share
from alerts.report.quantity import amount, counted, deviation, quantity
from api.pages import formats
from api.pages.assets import address
from slowrank import __version__

HEADERS = {
    # No inline script or style, nothing from another host; uPlot and htmx set styles through the DOM only.
    "content-security-policy": "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    # The URL may hold the token that opens the page: keep it out of caches and Referer headers.
    "cache-control": "private, no-store",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
THEMES = ("dark", "light")
NAVIGATION = (
    ("Fleet", "/"),
    ("Findings", "/findings"),
    ("Jobs", "/jobs"),
    ("Timeline", "/timeline"),
    ("Settings", "/settings"),
)


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks at a page: the name of their key, its scopes, and the CSRF token of their session."""

    name: str
    scopes: frozenset[str]
    csrf: str = ""

    def may(self, scope: str) -> bool:
        """Return whether the key has ``scope``."""
        return scope in self.scopes

    @property
    def may_edit(self) -> bool:
        """Whether forms that change findings are shown: only a session has a CSRF token."""
        return bool(self.csrf) and self.may("findings:write")


def page(
    request: Request,
    template: str,
    /,
    *,
    viewer: Viewer | None = None,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    **values: Any,
) -> HTMLResponse:
    """Return the HTML of a template; without a viewer it has no navigation."""
    theme = request.cookies.get("slowrank_theme", "")
    html = _TEMPLATES.get_template(template).render(
        values, viewer=viewer, theme=theme if theme in THEMES else "", path=request.url.path
    )
    return HTMLResponse(html, status, headers={**HEADERS, **(headers or {})})


def _environment() -> Environment:
    folder = Path(__file__).parent / "templates"
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "nav": NAVIGATION,
        "asset": address,
        "version": __version__,
        "query": formats.query,
    }
    named = ("duration", "moment", "clock", "ago", "prose", "web_link")
    environment.filters |= {name: getattr(formats, name) for name in named}
    environment.filters |= {
        "amount": amount,
        "deviation": deviation,
        "counted": counted,
        "quantity": quantity,
        "cause": cause_name,
        "share": cause_share,
        "place": formats.place_of,
    }
    return environment


def _visible(value: object) -> object:
    """Return text with a mark in place of characters that browsers hide or that reverse what follows."""
    return _HIDDEN.sub("�", value) if isinstance(value, str) and not isinstance(value, Markup) else value


# Control characters without tab and line ends, and the controls of the direction of text.
_HIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_TEMPLATES = _environment()
