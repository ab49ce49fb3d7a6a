"""The files that pages load: read once, and served under addresses that change with their content."""

import gzip
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.http.problems import not_found

router = APIRouter(include_in_schema=False)

FOLDER = Path(__file__).parents[1] / "static"
# Not of mimetypes: that reads the host's own tables.
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_IMMUTABLE = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    """One file; ``version`` names its content."""

    name: str
    body: bytes
    compressed: bytes
    media_type: str
    version: str

    @property
    def address(self) -> str:
        """The path with the version, under which the content never changes."""
        return f"/static/{self.name}?v={self.version}"


@lru_cache(maxsize=1)
def assets() -> dict[str, Asset]:
    """Return the served files by their path below ``api/static``."""
    found = sorted(path for path in FOLDER.rglob("*") if path.suffix in _TYPES)
    return {asset.name: asset for asset in map(_asset, found)}


def address(name: str) -> str:
    """Return the address of a file. Raises ``KeyError`` when there is no such file."""
    return assets()[name].address


@router.get("/static/{name:path}")
def read_asset(name: str, request: Request, v: str = "") -> Response:
    """Return a file; browsers keep it for ever under its version, and ask again without one."""
    # A table and no path: nothing else on this machine can be named.
    asset = assets().get(name)
    if asset is None:
        raise not_found("file", name)
    tag = f'"{asset.version}"'
    headers = {
        "cache-control": _IMMUTABLE if v == asset.version else "no-cache",
        "etag": tag,
        "vary": "accept-encoding",
    }
    if request.headers.get("if-none-match", "") == tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(
            asset.compressed, headers={**headers, "content-encoding": "gzip"}, media_type=asset.media_type
        )
    return Response(asset.body, headers=headers, media_type=asset.media_type)


def _asset(path: Path) -> Asset:
    body = path.read_bytes()
    return Asset(
        name=path.relative_to(FOLDER).as_posix(),
        body=body,
        # mtime: the same bytes in every process.
        compressed=gzip.compress(body, mtime=0),
        media_type=_TYPES[path.suffix],
        version=hashlib.sha256(body).hexdigest()[:16],
    )
