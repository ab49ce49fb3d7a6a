"""Bodies of OTLP metrics: gauges and cumulative sums are used, the rest is refused by reason."""

import contextlib
import json
from collections import Counter

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from api.foreign.measurement import MAX_PARTS, BadBody, Measurement
from api.foreign.otlp import JSON, PROTOBUF, answer, decode

TIME = "1795160472250000000"


def request(*metrics):
    """A request in OTLP's JSON, with the attribute of a host."""
    attribute = {"key": "host.name", "value": {"stringValue": "n"}}
    scope = {"metrics": list(metrics)}
    return {"resourceMetrics": [{"resource": {"attributes": [attribute]}, "scopeMetrics": [scope]}]}


def gauge(**point):
    attribute = {"key": "hw.id", "value": {"intValue": "3"}}
    return {
        "name": "hw.gpu.utilization",
        "gauge": {"dataPoints": [{"timeUnixNano": TIME, "attributes": [attribute], **point}]},
    }


def in_json(*metrics):
    return json.dumps(request(*metrics)).encode()


@pytest.mark.parametrize("value", [{"asDouble": 7.0}, {"asInt": "7"}])
def test_a_point_has_the_labels_of_its_resource_and_its_own(value):
    """The same in both encodings, whole numbers too."""
    wanted = [Measurement("hw.gpu.utilization", {"host_name": "n", "hw_id": "3"}, 1795160472.25, 7)]
    sent = in_json(gauge(**value))
    binary = json_format.Parse(sent, ExportMetricsServiceRequest()).SerializeToString()

    assert decode(sent, JSON).measurements == wanted
    assert decode(binary, PROTOBUF).measurements == wanted


def test_unknown_fields_are_skipped():
    """As the specification demands of receivers of JSON."""
    assert decode(in_json(gauge(asDouble=1.0, later="x")), JSON).measurements


def test_a_point_without_a_value_is_none():
    """The flag says that nothing was recorded; the number is 0 then."""
    assert decode(in_json(gauge(asDouble=0.0, flags=1)), JSON).measurements == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"histogram": {"dataPoints": [{}, {}]}}, "histogram"),
        ({"exponentialHistogram": {"dataPoints": [{}, {}]}}, "exponential_histogram"),
        ({"summary": {"dataPoints": [{}, {}]}}, "summary"),
        ({"sum": {"aggregationTemporality": 1, "dataPoints": [{}, {}]}}, "delta_sum"),
    ],
)
def test_other_types_are_refused_by_reason(data, reason):
    """The metrics beside them are used."""
    found = decode(in_json({"name": "x", **data}, gauge(asDouble=1.0)), JSON)

    assert found.refused == {reason: 2}
    assert len(found.measurements) == 1


def test_an_answer_says_what_was_refused():
    """With nothing refused it is empty, in both encodings."""
    response = ExportMetricsServiceResponse.FromString(answer(Counter(histogram=2, late=1), PROTOBUF))

    assert response.partial_success.rejected_data_points == 3
    assert response.partial_success.error_message == "2 histogram, 1 late"
    assert answer(Counter(), PROTOBUF) == b""
    assert json.loads(answer(Counter(), JSON)) == {}
    assert json.loads(answer(Counter(late=1), JSON))["partialSuccess"]["rejectedDataPoints"] == "1"


@given(st.binary(max_size=300))
def test_any_bytes_are_decoded_or_refused(data):
    """In both encodings, with no other error."""
    for media_type in (PROTOBUF, JSON):
        with contextlib.suppress(BadBody):
            assert decode(data, media_type).refused.total() >= 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attributes", "points"),
    [(0, MAX_PARTS), (1000, 1000)],
    ids=["points", "attributes of a resource with each of its points"],
)
def test_a_body_of_very_many_small_parts_is_refused(attributes, points):
    """A point has two bytes, and gets all attributes of its resource."""
    sent = ExportMetricsServiceRequest()
    resource = sent.resource_metrics.add()
    for number in range(attributes):
        resource.resource.attributes.add(key=str(number))
    gauge = resource.scope_metrics.add().metrics.add(name="x").gauge
    for _ in range(points):
        gauge.data_points.add()

    with pytest.raises(BadBody, match="more than 1,000,000 series, points and labels"):
        decode(sent.SerializeToString(), PROTOBUF)


@pytest.mark.parametrize("text", ["[" * 5000, '{"resourceMetrics":' * 500, "{}x", '{"resourceMetrics":[7]}'])
def test_json_that_is_no_request_is_refused(text):
    """However deep it is nested."""
    with pytest.raises(BadBody):
        decode(text.encode(), JSON)
