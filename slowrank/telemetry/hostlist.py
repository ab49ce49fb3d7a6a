"""Expands Slurm host lists such as ``gpu-[001-128,130],login[1-2]``, without Slurm."""

import itertools
import re
from collections.abc import Iterator

# Names in one list (chosen: four times the largest cluster that is shown on one page).
MAX_HOSTS = 4096

_TOO_MANY = f"a host list may name {MAX_HOSTS} nodes at most, counted as often as it repeats them"

_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\],]+)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def expand(text: str) -> list[str]:
    """Return the names of a host list in order, each once. Raises ``ValueError`` with what is wrong.

    A range keeps the width of its first number: ``n[08-11]`` is n08, n09, n10 and n11. Several brackets in
    one name are combined.

    >>> expand("gpu-[008-010,12],login")
    ['gpu-008', 'gpu-009', 'gpu-010', 'gpu-12', 'login']
    """
    names = itertools.chain.from_iterable(_expanded(name) for name in _names(text))
    found = list(itertools.islice(names, MAX_HOSTS + 1))
    if len(found) > MAX_HOSTS:
        raise ValueError(_TOO_MANY)
    return list(dict.fromkeys(found))


def _names(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    names = re.findall(r"(?:\[[^\[\]]*\]|[^\[\],])+", text)
    # Whatever the pattern left out besides commas is a bracket without its partner.
    if sum(map(len, names)) != len(text) - text.count(",") + sum(name.count(",") for name in names):
        raise ValueError(f"{text[:80]!r} is not a host list: a bracket has no partner")
    return [name.strip() for name in names if name.strip()]


def _expanded(name: str) -> Iterator[str]:
    parts: list[list[str]] = []
    combined = 1
    for match in _PART.finditer(name):
        # At most one more than is allowed: a text of 1,000 characters could name half a million numbers.
        numbers = iter([match[2]]) if match[1] is None else _numbers(match[1], name)
        parts.append(list(itertools.islice(numbers, MAX_HOSTS + 1)))
        combined *= len(parts[-1])
        if combined > MAX_HOSTS:
            raise ValueError(_TOO_MANY)
    return ("".join(chosen) for chosen in itertools.product(*parts))


def _numbers(ranges: str, name: str) -> Iterator[str]:
    for part in ranges.split(","):
        found = _RANGE.fullmatch(part.strip())
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise ValueError(f"{name[:80]!r} is not a host list: write gpu-[001-128] or gpu-[1,5-7]")
        for number in range(int(found[1]), int(found[2] or found[1]) + 1):
            yield f"{number:0{len(found[1])}d}"
