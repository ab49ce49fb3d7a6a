"""Checks the names of kinds of findings in requests."""

from collections.abc import Sequence

from alerts.kinds import KINDS, nearest_kind
from api.http.problems import contradiction

_FAMILIES = frozenset(kind.partition(".")[0] for kind in (*KINDS, "xid."))


def check_kinds(kinds: Sequence[str], pointer: str) -> None:
    """Raise the 409 problem for a name that is neither a kind of findings nor a family of kinds."""
    for kind in kinds:
        # A row of a family covers all its kinds; XIDs are numbered.
        if kind not in KINDS and kind not in _FAMILIES and kind.partition(".")[0] not in {*KINDS, "xid"}:
            there_are = ", ".join(sorted(_FAMILIES.union(KINDS)))
            like = f" (is it {near!r}?)" if (near := nearest_kind(kind)) else ""
            detail = (
                f"no finding is of the kind {kind!r}{like}; name a kind or a family of kinds: {there_are}"
            )
            raise contradiction(pointer, detail)
