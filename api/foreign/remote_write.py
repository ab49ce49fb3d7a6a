"""Prometheus remote write 1.0: a snappy block with a protobuf ``WriteRequest``.

Specification: prometheus.io/docs/specs/prw/remote_write_spec. The messages are described here, field by
field, as no package provides them; fields that are not used are skipped by protobuf.
"""

from typing import Any

import cramjam
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from api.foreign.measurement import BadBody, Decoded, Measurement
from slowrank.foreign.series import plain

# Bytes of a request. Chosen: thirty times a request of 2,000 series, the most that Prometheus sends by
# default, which has some 60 kB, and 500 kB inflated.
MAX_BODY = 2 * 2**20
MAX_INFLATED = 16 * 2**20

_FIELD = descriptor_pb2.FieldDescriptorProto

# Messages with their fields: name, number, type, and of repeated fields the message (``*``: no message).
_MESSAGES: dict[str, tuple[tuple[str, int, int, str], ...]] = {
    "Label": (("name", 1, _FIELD.TYPE_STRING, ""), ("value", 2, _FIELD.TYPE_STRING, "")),
    "Sample": (("value", 1, _FIELD.TYPE_DOUBLE, ""), ("timestamp", 2, _FIELD.TYPE_INT64, "")),
    "TimeSeries": (
        ("labels", 1, _FIELD.TYPE_MESSAGE, "Label"),
        ("samples", 2, _FIELD.TYPE_MESSAGE, "Sample"),
        # Only counted: no column is a histogram.
        ("histograms", 4, _FIELD.TYPE_BYTES, "*"),
    ),
    "WriteRequest": (("timeseries", 1, _FIELD.TYPE_MESSAGE, "TimeSeries"),),
}


def message_types() -> dict[str, Any]:
    """Return the protobuf classes by message name."""
    file = descriptor_pb2.FileDescriptorProto(
        name="slowrank/remote_write.proto", package="prometheus", syntax="proto3"
    )
    for message, fields in _MESSAGES.items():
        made = file.message_type.add(name=message)
        for name, number, kind, repeated in fields:
            of = f".prometheus.{repeated}" if repeated in _MESSAGES else None
            label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
            made.field.add(name=name, number=number, type=kind, label=label, type_name=of)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"prometheus.{name}"))
        for name in _MESSAGES
    }


_WriteRequest = message_types()["WriteRequest"]


def decode(body: bytes) -> Decoded:
    """Return the measurements of a request's body. Raises ``BadBody``."""
    request = _WriteRequest()
    try:
        request.ParseFromString(_inflate(body))
    except DecodeError as error:
        raise BadBody(f"the body is no WriteRequest of remote write 1.0: {error}") from error
    found = Decoded()
    for series in request.timeseries:
        found.count(1 + len(series.labels) + len(series.samples))
        found.refused["histogram"] += len(series.histograms)
        labels = plain({label.name: label.value for label in series.labels})
        name = labels.pop("__name__", "")
        for sample in series.samples:
            found.measurements.append(Measurement(name, labels, sample.timestamp / 1000.0, sample.value))
    return found


def _inflate(body: bytes) -> bytes:
    try:
        # Stated at the beginning of the block, before any memory is taken for it.
        size = cramjam.snappy.decompress_raw_len(body)
        if size > MAX_INFLATED:
            raise BadBody(f"the body inflates to {size} bytes, at most {MAX_INFLATED} are accepted")
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as error:
        raise BadBody(f"the body is no snappy block: {error}") from error
