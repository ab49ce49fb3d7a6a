"""A real Prometheus and the OpenTelemetry SDK find what our exporter's records of the same state find.

The API is served as `slowrank up` composes it: what it receives goes through the pipeline into the database.
"""

import http.server
import socket
import threading
import time
from collections.abc import Mapping

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from api.app import create_app
from api.foreign import ticks
from api.http.connections import server
from cli.embedded.local_sink import LocalSink
from exporters.collector import Instant, Reading
from exporters.exporter import Exporter, NodeIdentity
from exporters.spool import SpoolStats
from streams.config.settings import Tuning
from streams.pipeline import local_pipeline

GPUS, FAULTY, HEALTHY_SECONDS = 4, 2, 8
PORTS = ("eth1", "eth2")
ERRORS, LINK_DOWN = "gpu-0001", "gpu-0002"
NODES = (ERRORS, LINK_DOWN)


def state(second, node, gpu):
    """The columns of a GPU: after eight seconds, one of them has memory errors."""
    faulty = node == ERRORS and gpu == FAULTY and second >= HEALTHY_SECONDS
    return {
        "gpu.power_watts": 600.0 + gpu + second % 3,
        "gpu.temp_celsius": 60.0 + gpu,
        "gpu.utilization_ratio": 0.99,
        "gpu.ecc.uncorrected_total": 3 if faulty else 0,
    }


def is_up(second, node, port):
    """Whether the link of a port is up: after eight seconds, one of them is down."""
    return int(node != LINK_DOWN or port != PORTS[1] or second < HEALTHY_SECONDS)


class OwnCollector:
    """The state as our own collector reads it."""

    name = "own"
    columns: Mapping[str, str] = {}

    def __init__(self, node):
        self._node = node

    def collect(self, now):
        second = int(now.monotonic)
        return Reading(
            gpu={str(gpu): state(second, self._node, gpu) for gpu in range(GPUS)},
            nic={port: {"nic.port.up": is_up(second, self._node, port)} for port in PORTS},
        )

    def metrics(self):
        return {}

    def close(self):
        pass


@pytest.fixture(scope="module")
def own_findings():
    """Kind, node, GPU and port of what our exporter's records of the state lead to."""
    exporters = [Exporter(NodeIdentity("default", node, "b"), [OwnCollector(node)]) for node in NODES]
    pipeline = local_pipeline(Tuning())
    found = []
    for second in range(30):
        for exporter in exporters:
            for record in exporter.tick(Instant(1795160400.0 + second, second), SpoolStats(0, 0)):
                found += pipeline.process(record)
    found += pipeline.finish()
    subjects = {
        (f.kind, f.subject.node, f.subject.gpu_index, f.subject.nic) for f in found if f.status == "open"
    }
    assert subjects == {
        ("ecc.uncorrectable", ERRORS, FAULTY, None),
        ("link.nic_flap", LINK_DOWN, None, PORTS[1]),
    }
    return subjects


@pytest.fixture
def served(settings, pool, new_token, monkeypatch):
    """URL and key of an API whose telemetry goes through the pipeline into the database."""
    # The senders of these tests send at once: nothing of a round comes later.
    monkeypatch.setattr(ticks, "SETTLE_SECONDS", 1.0)
    sink = LocalSink(pool, now=time.time, tuning=Tuning())
    app = create_app(settings, pool, sink=sink)
    serving = server(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serving.run, kwargs={"sockets": [listening]})
        thread.start()
        key = new_token("telemetry:write", "telemetry:read", "findings:read")
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", key
        serving.should_exit = True
        thread.join(20)
    sink.close()


def findings(served, *, count):
    """Wait for so many findings; return kind, node, GPU and port of each."""
    url, key = served
    headers = {"authorization": f"Bearer {key}"}
    for _ in range(150):
        listed = httpx.get(f"{url}/api/v1/findings", headers=headers, trust_env=False).raise_for_status()
        if len(found := listed.json()["items"]) >= count:
            sources = httpx.get(f"{url}/api/v1/ingest/sources", headers=headers, trust_env=False).json()
            resolutions = [node["resolution_seconds"] for node in sources["nodes"]]
            assert resolutions == [pytest.approx(1.0, abs=0.3)] * len(NODES)
            subjects = [(f["kind"], f["subject"]) for f in found]
            return {(kind, s["node"], s.get("gpu_index"), s.get("nic")) for kind, s in subjects}
        time.sleep(0.2)
    sources = httpx.get(f"{url}/api/v1/ingest/sources", headers=headers, trust_env=False).text
    raise AssertionError(f"fewer than {count} findings within 30 s; received: {sources}")


NAMES = {
    "gpu.power_watts": ("DCGM_FI_DEV_POWER_USAGE", 1.0),
    "gpu.temp_celsius": ("DCGM_FI_DEV_GPU_TEMP", 1.0),
    "gpu.utilization_ratio": ("DCGM_FI_DEV_GPU_UTIL", 100.0),
    "gpu.ecc.uncorrected_total": ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 1.0),
}


@pytest.fixture
def dcgm_exporter():
    """The port of a page of the state, as dcgm-exporter and node_exporter show it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        began = None

        def do_GET(self):
            Handler.began = Handler.began or time.monotonic()
            second = int(time.monotonic() - Handler.began)
            lines = [
                f'{name}{{gpu="{gpu}",Hostname="{node}"}} {state(second, node, gpu)[column] * factor}'
                for column, (name, factor) in NAMES.items()
                for node in NODES
                for gpu in range(GPUS)
            ]
            links = [
                f'node_network_up{{device="{port}",Hostname="{node}"}} {is_up(second, node, port)}'
                for node in NODES
                for port in PORTS
            ]
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write("\n".join([*lines, *links, "go_goroutines 7", ""]).encode())

        def log_message(self, format, *args):
            pass

    page = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=page.serve_forever, args=(0.02,), daemon=True).start()
    yield page.server_address[1]
    page.shutdown()
    page.server_close()


CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs: [{{job_name: dcgm, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}]
remote_write:
- url: {url}/api/v1/write
  authorization: {{credentials: {key}}}
  queue_config: {{batch_send_deadline: 200ms}}
"""


def test_a_real_prometheus_leads_to_the_same_finding(own_findings, served, dcgm_exporter, private_prometheus):
    """It scrapes a page like dcgm-exporter's and writes all of it to the API."""
    url, key = served

    private_prometheus(CONFIG.format(port=dcgm_exporter, url=url, key=key))

    assert findings(served, count=len(own_findings)) == own_findings


@pytest.mark.slow
def test_the_opentelemetry_sdk_leads_to_the_same_finding(own_findings, served):
    """It exports metrics of the hardware conventions over HTTP."""
    url, key = served
    began = time.monotonic()

    def metrics(node):
        def observe(column, **more):
            def observed(options):
                second = int(time.monotonic() - began)
                for gpu in range(GPUS):
                    value = state(second, node, gpu)[column]
                    yield Observation(value, {"hw.id": str(gpu), "hw.type": "gpu", **more})

            return [observed]

        def links(options):
            for port in PORTS:
                up = is_up(int(time.monotonic() - began), node, port)
                yield Observation(up, {"hw.id": port, "hw.type": "network"})

        exporter = OTLPMetricExporter(
            endpoint=f"{url}/v1/metrics", headers={"authorization": f"Bearer {key}"}
        )
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=1000)
        provider = MeterProvider([reader], Resource({"host.name": node}), shutdown_on_exit=False)
        meter = provider.get_meter("test")
        meter.create_observable_gauge("hw.power", observe("gpu.power_watts"))
        meter.create_observable_gauge("hw.temperature", observe("gpu.temp_celsius"))
        meter.create_observable_gauge("hw.gpu.utilization", observe("gpu.utilization_ratio"))
        errors = observe("gpu.ecc.uncorrected_total", **{"error.type": "uncorrected"})
        meter.create_observable_counter("hw.errors", errors)
        meter.create_observable_gauge("hw.network.up", [links])
        return provider

    providers = [metrics(node) for node in NODES]
    try:
        assert findings(served, count=len(own_findings)) == own_findings
    finally:
        for provider in providers:
            provider.shutdown()
