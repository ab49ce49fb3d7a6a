"""The session cookie of browsers, and the token by which their forms prove to come from these pages."""

import hashlib
import hmac
from collections.abc import Mapping

from fastapi import Request, Response

from store.access.sessions import LIFE

COOKIE = "slowrank_session"
# A token has 43 characters; longer cookies are not looked up.
_MAX_TOKEN = 64


def token_of(request: Request) -> str:
    """Return the session token in the request's cookie; empty where there is none."""
    token = request.cookies.get(COOKIE, "")
    return token if len(token) <= _MAX_TOKEN else ""


def csrf_token(token: str) -> str:
    """Return the CSRF token of a session: derived, so that nothing else is stored."""
    return hmac.new(token.encode(), b"slowrank form", hashlib.sha256).hexdigest()


def is_from_our_form(token: str, fields: Mapping[str, str]) -> bool:
    """Return whether a form's field ``csrf`` is that of the session."""
    given = fields.get("csrf", "").encode()
    return bool(token) and hmac.compare_digest(given, csrf_token(token).encode())


def set_cookie(response: Response, token: str, *, secure: bool) -> None:
    """Give the browser a session."""
    seconds = int(LIFE["session"].total_seconds())
    response.set_cookie(COOKIE, token, max_age=seconds, httponly=True, samesite="strict", secure=secure)


def delete_cookie(response: Response, *, secure: bool) -> None:
    """Take the session from the browser."""
    response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=secure)
