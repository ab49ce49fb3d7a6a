"""OTLP metrics over HTTP: an ``ExportMetricsServiceRequest`` as protobuf or JSON.

Specification: opentelemetry.io/docs/specs/otlp. Gauges and cumulative sums are used; points of other types
are refused, which the answer states as a partial success.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsPartialSuccess,
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, DataPointFlags

from api.foreign.measurement import BadBody, Decoded, Measurement
from slowrank.foreign.series import plain

PROTOBUF, JSON = "application/x-protobuf", "application/json"

# Bytes of a request. Chosen: four times a batch of the Collector's default size, 8,192 points.
MAX_BODY = 4 * 2**20

_UNUSED = ("histogram", "exponential_histogram", "summary")


def decode(body: bytes, media_type: str) -> Decoded:
    """Return the measurements of a request's body of ``media_type``. Raises ``BadBody``."""
    request = ExportMetricsServiceRequest()
    try:
        if media_type == JSON:
            json_format.Parse(body, request, ignore_unknown_fields=True)
        else:
            request.ParseFromString(body)
    except (DecodeError, json_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise BadBody(f"the body is no ExportMetricsServiceRequest: {str(error)[:200]}") from error
    found = Decoded()
    for resource in request.resource_metrics:
        found.count(1 + len(resource.resource.attributes))
        attributes = _labels(resource.resource.attributes)
        for scope in resource.scope_metrics:
            found.count(1)
            for metric in scope.metrics:
                found.count(1)
                found.measurements += _measured(metric, attributes, found)
    return found


def answer(refused: Counter[str], media_type: str) -> bytes:
    """Return the response to a request with the count of refused points by reason, in its media type."""
    response = ExportMetricsServiceResponse()
    if refused.total():
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(refused.items()))
        response.partial_success.CopyFrom(
            ExportMetricsPartialSuccess(rejected_data_points=refused.total(), error_message=reasons)
        )
    if media_type == JSON:
        return bytes(json_format.MessageToJson(response, indent=None).encode())
    return bytes(response.SerializeToString())


def _measured(metric: Any, attributes: Mapping[str, str], found: Decoded) -> Iterator[Measurement]:
    kind, refused = metric.WhichOneof("data"), found.refused
    if kind in _UNUSED:
        refused[kind] += len(getattr(metric, kind).data_points)
        return
    if kind is None:
        return
    data = getattr(metric, kind)
    if (
        kind == "sum"
        and data.aggregation_temporality != AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    ):
        # A sum over one interval is no counter, and the sums of lost requests would be missing in it.
        refused["delta_sum"] += len(data.data_points)
        return
    for point in data.data_points:
        found.count(1 + len(attributes) + len(point.attributes))
        if point.flags & DataPointFlags.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK:
            continue
        value = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
        labels = {**attributes, **_labels(point.attributes)}
        yield Measurement(metric.name, labels, point.time_unix_nano / 10**9, value)


def _labels(attributes: Iterable[Any]) -> dict[str, str]:
    return plain({attribute.key: _text(attribute.value) for attribute in attributes})


def _text(value: Any) -> str:
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return str(value.string_value)
    return str(getattr(value, kind)) if kind in ("int_value", "bool_value", "double_value") else ""
