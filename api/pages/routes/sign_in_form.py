"""The page that asks for a key. Its form carries a random value that must match a cookie."""

import hmac
import re
import secrets
from collections.abc import Mapping

from fastapi import Request, Response

from api.deps import services
from api.pages.forms import safe_path
from api.pages.render import page
from api.security import links

COOKIE = "slowrank_form"
# That of 16 random bytes.
_VALUE = re.compile(r"[A-Za-z0-9_-]{22}")


def ask_to_sign_in(
    request: Request, detail: str, headers: Mapping[str, str] | None = None, *, status: int = 401
) -> Response:
    """Return the page with the form; afterwards it leads back to the page that was asked for."""
    # Kept, so that the form works in several tabs; what else a browser sends is not repeated.
    kept = request.cookies.get(COOKIE, "")
    value = kept if _VALUE.fullmatch(kept) else secrets.token_urlsafe(16)
    answer = page(
        request,
        "sign_in.html",
        status=status,
        headers=headers,
        detail=detail,
        next=_next(request),
        form=value,
        link_days=links.LIFE.days,
    )
    answer.set_cookie(COOKIE, value, httponly=True, samesite="strict", secure=is_secure(request))
    return answer


def matches(request: Request, fields: Mapping[str, str]) -> bool:
    """Return whether a sent form carries the value of the browser's cookie."""
    value = request.cookies.get(COOKIE, "")
    return bool(value) and hmac.compare_digest(value.encode(), fields.get("form", "").encode())


def is_secure(request: Request) -> bool:
    """Return whether the browser came by TLS, which may end at a proxy at ``public_url``."""
    public = services(request).settings.public_url
    by_proxy = public.startswith("https://") and public.split("/")[2] == request.headers.get("host", "")
    return request.url.scheme == "https" or by_proxy


def _next(request: Request) -> str:
    if request.method != "GET" or request.url.path.startswith("/sign-in"):
        return safe_path(request.query_params.get("next", "/"))
    # Without the token of a link, which opens nothing more.
    url = request.url.remove_query_params("t")
    return safe_path(url.path + (f"?{url.query}" if url.query else ""))
