"""Bodies of Prometheus remote write: decoded, bounded, and refused without an unexpected error."""

import contextlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.foreign.measurement import MAX_PARTS, BadBody, Measurement
from api.foreign.remote_write import MAX_INFLATED, decode, message_types

WriteRequest = message_types()["WriteRequest"]


def body(*series):
    """A request's body: series as (labels, [(ts in ms, value), …])."""
    request = WriteRequest()
    for labels, samples in series:
        made = request.timeseries.add()
        for name, value in labels.items():
            made.labels.add(name=name, value=value)
        for ts, value in samples:
            made.samples.add(timestamp=ts, value=value)
    return bytes(cramjam.snappy.compress_raw(request.SerializeToString()))


def in_a_series(fields):
    """One series of encoded fields, of 2 MB."""
    return b"\x0a" + encoded_length(fields) + fields


def encoded_length(fields):
    rest, found = len(fields), b""
    while rest > 0x7F:
        rest, found = rest >> 7, found + bytes((rest & 0x7F | 0x80,))
    return found + bytes((rest,))


def test_samples_have_name_labels_time_and_value():
    """Times are milliseconds there; labels are in lower case here."""
    found = decode(body(({"__name__": "up", "Hostname": "n"}, [(1795160472250, 1.0), (1795160487250, 0.0)])))

    assert found.measurements == [
        Measurement("up", {"hostname": "n"}, 1795160472.25, 1.0),
        Measurement("up", {"hostname": "n"}, 1795160487.25, 0.0),
    ]


def test_fields_of_later_versions_are_skipped():
    """Metadata and exemplars, which are not described here, do not disturb; histograms are counted."""
    # Field 3 of a request is its metadata; 3 and 4 of a series are exemplars and histograms.
    series = bytes((0x1A, 2, 0x08, 1, 0x22, 2, 0x08, 1))
    raw = bytes((0x0A, len(series))) + series + bytes((0x1A, 2, 0x08, 1))

    found = decode(bytes(cramjam.snappy.compress_raw(raw)))

    assert (found.measurements, found.refused) == ([], {"histogram": 1})


def test_a_body_that_inflates_to_too_much_is_refused_before_it_does():
    """The block states its size at the beginning."""
    bomb = bytes(cramjam.snappy.compress_raw(bytes(MAX_INFLATED + 1)))

    assert len(bomb) < MAX_INFLATED / 15
    with pytest.raises(BadBody, match="inflates to"):
        decode(bomb)


@pytest.mark.slow
@pytest.mark.parametrize(
    "series",
    [
        b"\x0a\x00" * (MAX_PARTS + 1),
        in_a_series(b"\x12\x00" * MAX_PARTS),
        in_a_series(b"\x0a\x00" * MAX_PARTS),
    ],
    ids=["series", "samples", "labels"],
)
def test_a_body_of_very_many_small_parts_is_refused(series):
    """Two bytes each, which would take a hundred times as many in memory."""
    with pytest.raises(BadBody, match="more than 1,000,000 series, points and labels"):
        decode(bytes(cramjam.snappy.compress_raw(series)))


@given(st.binary(max_size=300))
def test_any_bytes_are_decoded_or_refused(data):
    """As the block itself, and as what is in it."""
    for sent in (data, bytes(cramjam.snappy.compress_raw(data))):
        with contextlib.suppress(BadBody):
            assert decode(sent).refused.total() >= 0
