"""What the first bytes of rows tell of their format."""

import pytest

from slowrank.telemetry.rows.formats import wrong_separator


@pytest.mark.parametrize(
    ("rows", "header"),
    [
        (b"ts;rank;step\n1;2;3\n", "ts;rank;step"),
        (b'\xef\xbb\xbf"step"|"ts"\r\n1|2\r\n', '"step"|"ts"'),
        (b"ts,note\n1,a;ts;b\n", None),
        (b"ts\trank\n1\t2\n", None),
        (b'{"ts": 1, "note": ";ts;"}\n', None),
        (b"12:00; it begins; ts 5\n", None),
        (b"", None),
    ],
)
def test_a_table_with_another_separator_is_told_by_its_header(rows, header):
    """Only where it names the time, as any table of rows does."""
    wanted = "" if header is None else f"the columns must be separated by commas; the header is {header!r}"
    assert wrong_separator(rows) == wanted
