"""Remote write and OTLP over HTTP: which answers a sender gets, and what reaches the pipeline."""

import gzip
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

from api.http.limits import Rate
from slowrank.telemetry import NodeSample
from tests.api.foreign.test_otlp import gauge, in_json
from tests.api.foreign.test_remote_write import body

WRITE, METRICS = "/api/v1/write", "/v1/metrics"
SNAPPY = {"content-encoding": "snappy", "content-type": "application/x-protobuf"}
V2 = "application/x-protobuf;proto=io.prometheus.write.v2.Request"
IN_JSON = {"content-type": "application/json"}
GPU = {"__name__": "DCGM_FI_DEV_POWER_USAGE", "gpu": "3", "Hostname": "gpu-1"}


@pytest.fixture
def writer(client_with):
    return client_with("telemetry:write", "telemetry:read")


@pytest.fixture
def at(app, monkeypatch):
    """Set the time of the app (Unix s)."""

    def move(ts):
        now = datetime.fromtimestamp(ts, UTC)
        app.state.services = replace(app.state.services, now=lambda: now)

    return move


def power(ts, watts, **labels):
    return body(({**GPU, **labels}, [(round(ts * 1000), watts)]))


T0 = 1795160400.0


def test_samples_of_remote_write_reach_the_pipeline(writer, sink, at):
    """A 204 without a body; the records come when their rounds are complete."""
    for second in (0, 15, 30):
        at(T0 + second + 1)
        answer = writer.post(WRITE, headers=SNAPPY, content=power(T0 + second, 400.0))
        assert (answer.status_code, answer.content) == (204, b"")

    assert all(isinstance(record, NodeSample) for record in sink.records)
    assert [(r.cluster, r.node, r.gpu_ids, r.ts - T0) for r in sink.records] == [
        ("default", "gpu-1", ("3",), 0),
        ("default", "gpu-1", ("3",), 15),
    ]


def test_points_of_otlp_reach_the_pipeline(writer, sink, at):
    """In JSON, as protobuf and with gzip; with nothing refused the answer is empty."""
    time = 1795160472
    at(time + 1)
    plain = writer.post(METRICS, headers=IN_JSON, content=in_json(gauge(asDouble=0.9)))
    at(time + 100)
    later = in_json(gauge(asInt="1", timeUnixNano=str((time + 100) * 10**9)))
    zipped = writer.post(
        METRICS,
        headers=IN_JSON | {"content-encoding": "gzip"},
        content=gzip.compress(later),
    )

    assert (plain.status_code, plain.json(), zipped.status_code) == (200, {}, 200)
    assert [record.node for record in sink.records] == ["n"]


def test_refused_points_of_otlp_are_a_partial_success(writer, at):
    """With their number and reasons, in the encoding of the request."""
    at(1795160472 + 1)
    sent = in_json({"name": "x", "histogram": {"dataPoints": [{}]}}, gauge(asDouble=1.0))

    assert writer.post(METRICS, headers=IN_JSON, content=sent).json() == {
        "partialSuccess": {"rejectedDataPoints": "1", "errorMessage": "1 histogram"}
    }
    protobuf = writer.post(METRICS, headers={"content-type": "application/x-protobuf"}, content=b"")
    assert ExportMetricsServiceResponse.FromString(protobuf.content).partial_success.rejected_data_points == 0


def test_a_refused_sample_is_a_400_and_the_others_are_used(writer, at):
    """A 400 is not sent again, so it says what was not accepted."""
    at(T0)
    sent = body((GPU, [(round(T0 * 1000), 1.0), (1000, 1.0)]))

    answer = writer.post(WRITE, headers=SNAPPY, content=sent)

    assert answer.status_code == 400
    assert "1 bad_time" in answer.json()["detail"]
    assert writer.get("/api/v1/ingest/sources").json()["nodes"][0]["node"] == "gpu-1"


def test_unknown_metrics_are_accepted_and_listed(writer, at):
    """Prometheus sends everything by default: their names show what could be left out, or mapped."""
    at(T0)
    sent = body(({"__name__": "go_goroutines", "instance": "a:1"}, [(round(T0 * 1000), 1.0)]))

    assert writer.post(WRITE, headers=SNAPPY, content=sent).status_code == 204
    found = writer.get("/api/v1/ingest/sources").json()
    assert found == {"nodes": [], "unused": {"unknown_metric": 1}, "unknown_metrics": {"go_goroutines": 1}}


@pytest.mark.parametrize(
    ("path", "headers", "content", "status"),
    [
        (WRITE, SNAPPY, b"no snappy", 400),
        (WRITE, SNAPPY | {"content-encoding": "gzip"}, b"", 415),
        (WRITE, {"content-type": "application/x-protobuf"}, b"", 415),
        (WRITE, SNAPPY | {"content-type": "text/plain"}, b"", 415),
        (WRITE, SNAPPY | {"content-type": V2}, b"", 415),
        (WRITE, SNAPPY, bytes(2**21 + 1), 413),
        (METRICS, IN_JSON, b"{", 400),
        (METRICS, {"content-type": "application/x-protobuf"}, b"\xff", 400),
        (METRICS, IN_JSON | {"content-encoding": "gzip"}, b"no gzip", 400),
        (METRICS, IN_JSON | {"content-encoding": "br"}, b"{}", 415),
        (METRICS, {"content-type": "text/plain"}, b"{}", 415),
        (METRICS, IN_JSON, bytes(2**22 + 1), 413),
    ],
)  # fmt: skip
def test_what_is_no_request_is_a_4xx(writer, path, headers, content, status):
    """So that it is not sent again."""
    assert writer.post(path, headers=headers, content=content).status_code == status


def test_a_key_writes_into_its_own_clusters(client_with, sink, at):
    """The only cluster of a key is that of series without a label; another one is refused."""
    writer = client_with("telemetry:write", clusters=("c",))
    for second in (0, 15, 30):
        at(T0 + second + 1)
        assert writer.post(WRITE, headers=SNAPPY, content=power(T0 + second, 1.0)).status_code == 204
    answer = writer.post(WRITE, headers=SNAPPY, content=power(T0 + 30, 1.0, cluster="other"))

    assert {record.cluster for record in sink.records} == {"c"}
    assert (answer.status_code, "forbidden_cluster" in answer.text) == (400, True)


@pytest.mark.parametrize("path", [WRITE, METRICS])
def test_a_key_without_the_scope_is_refused(client_with, path):
    """Reading telemetry does not mean writing it."""
    assert client_with("telemetry:read").post(path, headers=IN_JSON, content=b"{}").status_code == 403


def test_a_pipeline_that_is_away_is_a_503_and_loses_nothing(writer, sink, at):
    """The request is sent again, and what was complete by then is kept."""
    for second in (0, 15):
        at(T0 + second + 1)
        writer.post(WRITE, headers=SNAPPY, content=power(T0 + second, 1.0))
    sink.refusal = "no broker"
    at(T0 + 31)
    refused = writer.post(WRITE, headers=SNAPPY, content=power(T0 + 30, 1.0))
    sink.refusal = ""
    at(T0 + 36)
    repeated = writer.post(WRITE, headers=SNAPPY, content=power(T0 + 30, 1.0))

    assert (refused.status_code, refused.headers["retry-after"], repeated.status_code) == (503, "5", 204)
    assert [record.ts - T0 for record in sink.records] == [0, 15]


def test_the_sources_show_their_resolution(writer, client_with, at):
    """Of the clusters that a key may see."""
    for second in (0, 30):
        at(T0 + second + 1)
        writer.post(WRITE, headers=SNAPPY, content=power(T0 + second, 1.0, cluster="c"))

    (node,) = writer.get("/api/v1/ingest/sources").json()["nodes"]
    assert node == {
        "cluster": "c",
        "node": "gpu-1",
        "source": "remote_write",
        "resolution_seconds": 30.0,
        "age_seconds": 0.0,
    }
    other = client_with("telemetry:read", clusters=("d",))
    assert other.get("/api/v1/ingest/sources").json()["nodes"] == []


def test_agents_have_a_rate_of_their_own(writer, monkeypatch, at):
    """Prometheus drops what is refused with a 429 by default: its shards send more than people write."""
    at(T0)
    monkeypatch.setattr("api.security.auth.WRITE", Rate(1.0, 1.0))

    answers = {writer.post(METRICS, headers=IN_JSON, content=b"{}").status_code for _ in range(30)}

    assert answers == {200}


def test_a_request_with_an_idempotency_key_is_carried_out_once(writer, sink, at):
    """As every POST; its repetition gets the same answer."""
    headers = SNAPPY | {"idempotency-key": "one"}
    at(T0 + 1)
    answers = [writer.post(WRITE, headers=headers, content=power(T0, 1.0)) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [204, 204]
    assert answers[1].headers["idempotency-replayed"] == "true"
