"""What a request may raise besides ``httpx.HTTPError``."""


class ApiError(Exception):
    """The API refused a request (RFC 9457); ``collection`` is the first part of its path.

    ``retry_after_seconds`` is set where the answer asks to wait, as with 429 and 503.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        collection: str = "",
        request_id: str = "",
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(f"HTTP {status}: {detail}")
        self.status, self.detail = status, detail
        self.collection, self.request_id = collection, request_id
        self.retry_after_seconds = retry_after_seconds

    @property
    def is_passing(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status == 429 or self.status >= 500


class NoId(ValueError):
    """An id is empty: its path would name the list instead."""


class NotSlowrank(Exception):
    """What answered is not slowrank's API, or not of this version."""
