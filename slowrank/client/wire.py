"""Between requests and HTTP messages; what both clients share."""

from typing import TYPE_CHECKING, Any

from slowrank.client.errors import ApiError, NotSlowrank
from slowrank.client.request import Request

if TYPE_CHECKING:
    import httpx

BASE = "/api/v1"
# Limit on an answer. Chosen: twice the longest statement that the API allows its database (15 s).
TIMEOUT_SECONDS = 30.0
# A stream is quiet for 15 s at most (a comment is sent then); three of them are a lost connection.
STREAM_TIMEOUT_SECONDS = 45.0


def options(url: str, key: str, timeout: float) -> dict[str, Any]:
    """Return the arguments of an httpx client; proxies of the environment are not used."""
    headers = {"authorization": f"Bearer {key}", "accept": "application/json"}
    return {"base_url": url.rstrip("/"), "headers": headers, "timeout": timeout, "trust_env": False}


def message(request: Request[Any]) -> dict[str, Any]:
    """Return the arguments of ``httpx.Client.request``."""
    return {
        "method": request.method,
        "url": f"{BASE}{request.path}",
        "params": dict(request.params),
        "json": request.json,
        "content": request.content,
        "headers": dict(request.headers),
    }


def decoded(answer: "httpx.Response") -> Any:
    """Return the decoded body, None where there is none. Raises ``ApiError`` and ``NotSlowrank``."""
    if not answer.is_success:
        raise refused(answer)
    try:
        return answer.json() if answer.content else None
    except ValueError as error:
        raise NotSlowrank from error


def refused(answer: "httpx.Response") -> ApiError:
    """Return the error of an answer whose body has been read."""
    try:
        problem = answer.json()
        detail, number = problem.get("detail") or problem.get("title"), problem.get("request_id")
    except (ValueError, AttributeError):
        detail, number = answer.text[:200], None
    after = answer.headers.get("retry-after", "")
    return ApiError(
        answer.status_code,
        str(detail),
        collection=answer.request.url.path.removeprefix(f"{BASE}/").partition("/")[0],
        request_id=number or "",
        retry_after_seconds=float(after) if after.isdigit() else None,
    )


def page(answer: Any) -> tuple[list[Any], str]:
    """Return the items of a page and the cursor of the next one. Raises ``NotSlowrank``."""
    if not isinstance(answer, dict) or not {"items", "next_cursor"} <= answer.keys():
        raise NotSlowrank
    return answer["items"], answer["next_cursor"] or ""
