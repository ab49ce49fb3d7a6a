"""The files of the pages: vendored as published, small, cached by content, and none beside."""

import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest

from api.pages import assets

VENDOR = assets.FOLDER / "vendor"
LOCK = json.loads((VENDOR / "vendor.lock.json").read_text())


def test_vendored_files_are_those_of_the_lock():
    """Every file has its checksum, none is missing or beside the lock, each package has its licence."""
    found = {path.relative_to(VENDOR).as_posix() for path in VENDOR.rglob("*") if path.is_file()}
    locked = {f"{folder}/{name}" for folder, package in LOCK.items() for name in package["files"]}
    assert found == locked | {"vendor.lock.json"}
    for folder, package in LOCK.items():
        assert folder == f"{package['package']}-{package['version']}"
        assert "LICENSE" in package["files"]
        for name, checksum in package["files"].items():
            assert hashlib.sha256((VENDOR / folder / name).read_bytes()).hexdigest() == checksum


def test_all_javascript_is_at_most_60_kb():
    """Compressed, ours and vendored together."""
    scripts = [path.read_bytes() for path in assets.FOLDER.rglob("*.js")]
    assert 0 < sum(len(gzip.compress(script)) for script in scripts) <= 60_000


@pytest.mark.parametrize("name", assets.assets())
def test_an_asset_is_kept_for_ever_under_its_version_only(client_with, name):
    """Without a key; a former version is not cached, so that it never stands for the present one."""
    asset = assets.assets()[name]
    answer = client_with().get(asset.address)
    assert answer.content == asset.body
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-type"].split(";")[0] in ("text/css", "text/javascript", "image/svg+xml")
    other = client_with().get(f"/static/{name}?v=0000", headers={"accept-encoding": "identity"})
    assert (other.content, other.headers["cache-control"]) == (asset.body, "no-cache")
    seen = {"if-none-match": answer.headers["etag"]}
    assert client_with().get(f"/static/{name}", headers=seen).status_code == 304


@pytest.mark.parametrize(
    "path",
    ["../app.py", "..%2f..%2fapp.py", "vendor/vendor.lock.json", "vendor/uplot-1.6.32/LICENSE", "", "%00"],
)
def test_nothing_else_is_served(client_with, path):
    """Only the files that pages load."""
    assert client_with().get(f"/static/{path}").status_code == 404


def test_our_files_load_nothing_from_elsewhere():
    """No address of another host in our styles, scripts and templates: an isolated site lacks nothing."""
    ours = [path for path in assets.FOLDER.iterdir() if path.suffix in (".css", ".js")]
    templates = list((Path(assets.__file__).parent / "templates").glob("*.html"))
    assert ours
    assert templates
    for path in (*ours, *templates):
        assert not re.search(r"(?:src|href|url\(|fetch\(|import).{0,3}https?://", path.read_text()), path.name
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|style=", path.read_text()), path.name
