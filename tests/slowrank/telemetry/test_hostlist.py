"""Slurm host lists as Slurm expands them (scontrol show hostnames)."""

import pytest

from slowrank.telemetry.hostlist import MAX_HOSTS, expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu-0423", ["gpu-0423"]),
        ("gpu-[008-011]", ["gpu-008", "gpu-009", "gpu-010", "gpu-011"]),
        ("gpu-[1,5-7],login", ["gpu-1", "gpu-5", "gpu-6", "gpu-7", "login"]),
        ("r[1-2]n[01-02]x", ["r1n01x", "r1n02x", "r2n01x", "r2n02x"]),
        ("n[9-10]", ["n9", "n10"]),
        ("a,b,a", ["a", "b"]),
        (" a , b,", ["a", "b"]),
        ("", []),
    ],
)
def test_lists_expand(text, names):
    """In order, each once, zeroes kept."""
    assert expand(text) == names


@pytest.mark.parametrize(
    "text", ["n[1", "n1]", "n[[1]]", "n[]", "n[2-1]", "n[a-b]", "n[-1]", "n[1-]", "n[1--3]"]
)
def test_what_is_no_list(text):
    """The error quotes what was given."""
    with pytest.raises(ValueError, match="is not a host list"):
        expand(text)


@pytest.mark.parametrize(
    "text",
    [
        "n[0-4096]",
        "n[1-4000],m[1-4000]",
        "n[1-999]m[1-999]k[1-999]j[1-999]",
        # The same numbers again cost time, too.
        "n[1-4096,1]",
        "n[1-4000],n[1-4000],m",
        "n[" + "1-4096," * 140 + "1]",
    ],
)
def test_lists_are_bounded(text):
    """Neither memory nor time grows with what a short text would name."""
    with pytest.raises(ValueError, match=f"{MAX_HOSTS} nodes at most"):
        expand(text)
    assert len(expand(f"n[1-{MAX_HOSTS}]")) == MAX_HOSTS
