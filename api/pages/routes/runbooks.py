"""The runbooks of the kinds of findings, ``docs/runbooks.md``, as pages to which findings link."""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from fastapi import APIRouter, Request, Response
from markdown_it import MarkdownIt
from markupsafe import Markup

from alerts.kinds import row_of
from api.http.problems import not_found
from api.pages.render import page
from api.pages.route import PageRoute

router = APIRouter(include_in_schema=False, route_class=PageRoute)

# Beside this module in the wheel, among the documentation in a checkout.
FILES = (Path(__file__).parents[1] / "runbooks.md", Path(__file__).parents[3] / "docs/runbooks.md")
# The rest of the documentation is not served.
_LINK_TO_DOCUMENT = re.compile(r"\[([^\]]+)\]\(([a-z-]+\.md)[^)]*\)")


@router.get("/runbooks")
def list_runbooks(request: Request) -> Response:
    """Show the list of runbooks; they hold nothing secret, so no key is needed."""
    return page(request, "runbook.html", kinds=list(runbooks()), kind="", text="")


@router.get("/runbooks/{kind}")
def show_runbook(kind: str, request: Request) -> Response:
    """Show what to do about findings of a kind, or of the family that it belongs to."""
    name = row_of(kind)
    found = runbooks().get(name)
    if found is None:
        raise not_found("runbook", kind)
    return page(request, "runbook.html", kinds=(), kind=name, text=found)


@lru_cache(maxsize=1)
def runbooks() -> Mapping[str, Markup]:
    """Return the runbooks as HTML by kind: a section of the document each."""
    text = next(file for file in FILES if file.exists()).read_text(encoding="utf-8")
    sections = text.split("\n## ")[1:]
    return {title.strip(): _html(body) for title, _, body in (s.partition("\n") for s in sections)}


def _html(text: str) -> Markup:
    # Raw HTML is escaped, so that the page stays within its content security policy.
    markdown = MarkdownIt("commonmark", {"html": False})
    return Markup(markdown.render(_LINK_TO_DOCUMENT.sub(r"\1 (docs/\2)", text)))
