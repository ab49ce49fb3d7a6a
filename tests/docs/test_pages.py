"""All pages: links lead somewhere, every page is linked, and every table for slowrank.toml is taken."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from streams.config.toml_file import tuning_of
from tests.streams.cluster.weak_signs import REGION

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
TABLES = [
    (page, block) for page in PAGES for block in re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
]


def prose(page):
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def links(page):
    """Yield the target of each link of a page to a place of the repository, and its anchor."""
    for url in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose(page)):
        if "://" not in url:
            path, _, anchor = url.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


def anchors(page):
    """Return the anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    """The file is there, and so is the heading."""
    for target, anchor in links(page):
        assert target.exists(), target
        assert not anchor or anchor in anchors(target), f"{target}#{anchor}"


def test_every_page_is_linked():
    """From the README one gets to each page."""
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        page = page / "README.md" if page.is_dir() else page
        if page.suffix == ".md" and page not in reached:
            reached.add(page)
            ahead += [target for target, _ in links(page)]
    assert set(PAGES) <= reached


@pytest.mark.parametrize(("page", "block"), TABLES, ids=[str(page.relative_to(ROOT)) for page, _ in TABLES])
def test_tables_are_taken(page, block, tmp_path):
    """What the pages tell people to write into slowrank.toml is not refused, with models where it says."""
    for model in re.findall(r'^model = "(.+?)"', block, re.MULTILINE):
        (tmp_path / model).write_bytes(msgspec.json.encode(REGION))
    tuning_of(tomllib.loads(block), file=page.name, folder=tmp_path)
