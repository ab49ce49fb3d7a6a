"""Write the dashboards of deploy/grafana: Fleet, Job, and slowrank itself.

PYTHONPATH=. python scripts/grafana_dashboards.py
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "deploy/grafana/dashboards"
POSTGRES = {"type": "grafana-postgresql-datasource", "uid": "slowrank-postgres"}
PROMETHEUS = {"type": "prometheus", "uid": "slowrank-prometheus"}
WIDTH = 24
# Variables are put into SQL as quoted and escaped strings (Grafana's format `sqlstring`).
CLUSTERS = "cluster IN (${cluster:sqlstring})"
JOB = f"{CLUSTERS} AND job_id = ${{job:sqlstring}}"
LIVE = "status IN ('open', 'acknowledged')"
GRAVEST = "CASE severity WHEN 'critical' THEN 0 WHEN 'error' THEN 1 WHEN 'warning' THEN 2 ELSE 3 END"
Json = dict[str, Any]


def sql(text: str, *, table: bool = False) -> Json:
    """Return a query of the database; of a time series unless ``table``."""
    return {
        "format": "table" if table else "time_series",
        "rawQuery": True,
        "editorMode": "code",
        "rawSql": text,
    }


def promql(expr: str, legend: str = "") -> Json:
    """Return a query of Prometheus."""
    return {"expr": expr, "legendFormat": legend or "__auto"}


def panel(kind: str, title: str, queries: Iterable[Json], size: tuple[int, int], **more: Any) -> Json:
    """Return a panel of ``size`` (width of 24, height); the kind of query decides its data source."""
    found = list(queries)
    source = PROMETHEUS if "expr" in found[0] else POSTGRES
    targets = [{"refId": chr(65 + i), "datasource": source, **query} for i, query in enumerate(found)]
    return {"type": kind, "title": title, "datasource": source, "targets": targets, "gridPos": size, **more}


def laid_out(panels: Iterable[Json]) -> list[Json]:
    """Return panels from left to right and top to bottom, numbered."""
    placed, x, y, tallest = list[Json](), 0, 0, 0
    for number, item in enumerate(panels, 1):
        width, height = item["gridPos"]
        if x + width > WIDTH:
            x, y, tallest = 0, y + tallest, 0
        placed.append(item | {"id": number, "gridPos": {"x": x, "y": y, "w": width, "h": height}})
        x, tallest = x + width, max(tallest, height)
    return placed


def unit(name: str, **more: Any) -> Json:
    """Return the field settings of a panel in a unit."""
    return {"fieldConfig": {"defaults": {"unit": name, **more}, "overrides": []}}


def query_variable(name: str, label: str, text: str, *, several: bool = False) -> Json:
    """Return a variable whose values a query gives."""
    variable = {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": POSTGRES,
        "query": text,
        "refresh": 2,
    }
    every = {"multi": True, "includeAll": True, "current": {"text": "All", "value": "$__all"}}
    return variable | (every if several else {"multi": False})


CLUSTER = query_variable(
    "cluster", "Cluster", "SELECT DISTINCT cluster FROM v_nodes ORDER BY 1", several=True
)
ADDRESS = {
    "name": "slowrank",
    "label": "Address of slowrank",
    "type": "textbox",
    "query": "http://127.0.0.1:8080",
    "current": {"text": "http://127.0.0.1:8080", "value": "http://127.0.0.1:8080"},
}
TO_FINDING = {
    "matcher": {"id": "byName", "options": "id"},
    "properties": [
        {"id": "links", "value": [{"title": "Open finding", "url": "${slowrank}/findings/${__value.raw}"}]}
    ],
}


def annotations(where: str) -> Json:
    """Return the findings as marks on every time axis."""
    text = (
        "SELECT onset AS time, coalesce(resolved_at, now()) AS timeend, title AS text, kind AS tags\n"
        f"FROM v_findings WHERE status <> 'suspected' AND {where} AND $__timeFilter(onset)"
    )
    target = {"refId": "Anno", **sql(text, table=True)}
    return {
        "name": "Findings",
        "enable": True,
        "iconColor": "orange",
        "datasource": POSTGRES,
        "target": target,
    }


def findings_table(title: str, where: str) -> Json:
    """Return the live findings, costliest first; the id leads to the finding's page."""
    text = (
        'SELECT severity, title, round(gpu_hours_lost_per_hour::numeric, 1) AS "GPU-h/h",\n'
        '  round(gpu_hours_lost::numeric, 1) AS "GPU-h lost", cause, action, onset, status, id\n'
        f"FROM v_findings WHERE {LIVE} AND {where}\n"
        f"ORDER BY gpu_hours_lost_per_hour DESC NULLS LAST, {GRAVEST}, onset LIMIT 200"
    )
    settings = {"fieldConfig": {"defaults": {}, "overrides": [TO_FINDING]}}
    return panel("table", title, [sql(text, table=True)], (24, 9), **settings)


def stat(title: str, text: str, what: str = "short") -> Json:
    """Return one number."""
    return panel("stat", title, [sql(text, table=True)], (4, 4), **unit(what))


def dashboard(uid: str, title: str, variables: list[Json], panels: list[Json], marks: list[Json]) -> Json:
    """Return a dashboard. schemaVersion 39 is that of Grafana 11, which later ones migrate."""
    return {
        "uid": uid,
        "title": title,
        "tags": ["slowrank"],
        "schemaVersion": 39,
        "timezone": "utc",
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": variables},
        "annotations": {"list": marks},
        "panels": laid_out(panels),
    }


def fleet() -> Json:
    """Return the dashboard of all clusters."""
    live = f"FROM v_findings WHERE {LIVE} AND {CLUSTERS}"
    counted = f"status <> 'suspected' AND group_key IS NULL AND {CLUSTERS}"
    panels = [
        stat("Critical now", f"SELECT count(*) {live} AND severity = 'critical'"),
        stat("Open findings", f"SELECT count(*) {live}"),
        stat(
            "GPU-hours lost per hour",
            f"SELECT coalesce(sum(gpu_hours_lost_per_hour), 0) {live} AND group_key IS NULL",
        ),
        stat(
            "GPU-hours lost in this time",
            "SELECT coalesce(sum(gpu_hours_lost), 0) FROM v_findings\n"
            f"WHERE {counted} AND $__timeFilter(onset)",
        ),
        stat(
            "Nodes silent for 30 s",
            f"SELECT count(*) FROM v_nodes WHERE {CLUSTERS} AND last_seen_at < now() - interval '30 seconds'",
        ),
        stat(
            "Newest telemetry",
            f"SELECT extract(epoch FROM now() - max(last_seen_at)) FROM v_nodes WHERE {CLUSTERS}",
            "s",
        ),
        findings_table("Open findings, costliest first", CLUSTERS),
        panel(
            "timeseries",
            "GPU-hours lost by day and kind",
            [
                sql(
                    "SELECT day AS time, kind AS metric, sum(gpu_hours_lost) AS value FROM v_gpu_hours_lost\n"
                    f"WHERE {CLUSTERS} AND $__timeFilter(day) GROUP BY 1, 2 ORDER BY 1"
                )
            ],
            (12, 8),
            # Whole days: hours of the dashboard's time would hold no midnight.
            timeFrom="30d",
            **unit("h", custom={"drawStyle": "bars", "stacking": {"mode": "normal"}, "fillOpacity": 80}),
        ),
        panel(
            "table",
            "Nodes with open findings",
            [
                sql(
                    "SELECT cluster, node, open_findings, job_id, gpus, last_seen_at FROM v_nodes\n"
                    f"WHERE {CLUSTERS} AND open_findings > 0\n"
                    "ORDER BY worst_severity_rank DESC NULLS LAST, open_findings DESC LIMIT 100",
                    table=True,
                )
            ],
            (12, 8),
        ),
    ]
    return dashboard(
        "slowrank-fleet", "slowrank / Fleet", [CLUSTER, ADDRESS], panels, [annotations(CLUSTERS)]
    )


def job() -> Json:
    """Return the dashboard of one job."""
    jobs = (
        f"SELECT job_id FROM v_nodes WHERE job_id IS NOT NULL AND {CLUSTERS}\n"
        f"UNION SELECT job_id FROM v_findings WHERE job_id IS NOT NULL AND {CLUSTERS} ORDER BY 1"
    )
    of_job = f"FROM v_findings WHERE {JOB}"
    ratios = (
        "WITH medians AS (\n"
        "  SELECT bucket, percentile_cont(0.5) WITHIN GROUP (ORDER BY compute_seconds) AS median\n"
        f"  FROM v_rank_heatmap WHERE {JOB} AND $__timeFilter(bucket) GROUP BY bucket),\n"
        "ratios AS (SELECT bucket, rank, node, compute_seconds / nullif(median, 0) AS ratio\n"
        f"  FROM v_rank_heatmap JOIN medians USING (bucket) WHERE {JOB} AND $__timeFilter(bucket))\n"
    )
    slowest = "(SELECT rank FROM ratios GROUP BY rank ORDER BY avg(ratio) DESC NULLS LAST LIMIT 10)"
    panels = [
        stat("Open findings", f"SELECT count(*) {of_job} AND {LIVE}"),
        stat(
            "GPU-hours lost",
            f"SELECT coalesce(sum(gpu_hours_lost), 0) {of_job}\n"
            "  AND group_key IS NULL AND status <> 'suspected'",
        ),
        stat("Slowdown of the job", f"SELECT max(job_slowdown_ratio) {of_job} AND {LIVE}"),
        stat(
            "Ranks",
            f"SELECT count(DISTINCT rank) FROM v_rank_heatmap WHERE {JOB} AND $__timeFilter(bucket)",
        ),
        panel(
            "timeseries",
            "Step time: median of the ranks, 5 % to 95 %, and the slowest",
            [
                sql(
                    "SELECT bucket AS time, median, p05, p95, slowest FROM v_step_time\n"
                    f"WHERE {JOB} AND $__timeFilter(bucket) ORDER BY 1"
                )
            ],
            (24, 9),
            **unit("s"),
        ),
        panel(
            "timeseries",
            "Compute of the ten slowest ranks, over the median of all",
            [
                sql(
                    f"{ratios}SELECT bucket AS time, 'rank ' || rank AS metric, ratio AS value FROM ratios\n"
                    f"WHERE rank IN {slowest} ORDER BY 1"
                )
            ],
            (14, 9),
            # A fixed scale: with an automatic one noise looks like a fault.
            **unit("short", min=0.9, max=1.5),
        ),
        panel(
            "table",
            "Slowest ranks in this time",
            [
                sql(
                    f"{ratios}SELECT rank, max(node) AS node, round(avg(ratio)::numeric, 3) AS over_median\n"
                    "FROM ratios GROUP BY rank ORDER BY 3 DESC NULLS LAST LIMIT 50",
                    table=True,
                )
            ],
            (10, 9),
        ),
        findings_table("Open findings of this job", JOB),
    ]
    variables = [CLUSTER, query_variable("job", "Job", jobs), ADDRESS]
    return dashboard("slowrank-job", "slowrank / Job", variables, panels, [annotations(JOB)])


def itself() -> Json:
    """Return the dashboard of slowrank's own processes."""

    def plot(title: str, queries: Mapping[str, str], what: str = "short") -> Json:
        return panel(
            "timeseries", title, [promql(e, name) for name, e in queries.items()], (8, 7), **unit(what)
        )

    late = "sum by (le) (rate(slowrank_event_to_finding_seconds_bucket[1h]))"
    answers = "sum by (le, route) (rate(slowrank_http_request_seconds_bucket[5m]))"
    panels = [
        plot(
            "Messages taken",
            {"{{source}}": "sum by (source) (rate(slowrank_samples_ingested_total[5m]))"},
            "cps",
        ),
        plot("Messages waiting, longest", {"{{role}}": "max by (role) (slowrank_consumer_lag_seconds)"}, "s"),
        plot(
            "Oldest message not taken",
            {"{{topic}}": "max by (topic) (slowrank_oldest_unprocessed_seconds)"},
            "s",
        ),
        plot(
            "Capacity used by workers",
            {
                "{{role}}, median of 5 min": "max by (role) (slowrank_capacity_used_ratio)",
                "now {{instance}}": "slowrank_worker_load_ratio",
            },
            "percentunit",
        ),
        plot(
            "Age of the oldest snapshot",
            {"{{instance}}": "max by (instance) (slowrank_snapshot_age_seconds)"},
            "s",
        ),
        plot("Messages waiting", {"{{topic}}": "sum by (topic) (slowrank_consumer_lag_records)"}),
        plot(
            "From onset to finding",
            {"median": f"histogram_quantile(0.5, {late})", "95 %": f"histogram_quantile(0.95, {late})"},
            "s",
        ),
        plot(
            "Wall clock less event time",
            {"{{stream}}": "max by (stream) (slowrank_watermark_delay_seconds)"},
            "s",
        ),
        plot(
            "Workers",
            {
                "stalled {{instance}}": "slowrank_worker_stalled",
                "waiting for a server {{instance}}": "slowrank_worker_waiting",
                "database away {{instance}}": "1 - slowrank_database_up",
            },
        ),
        plot(
            "Nodes",
            {"reporting": "sum(slowrank_nodes_reporting)", "expected": "sum(slowrank_nodes_expected)"},
        ),
        plot(
            "Dead letters in 15 min",
            {"{{topic}} {{reason}}": "sum by (topic, reason) (increase(slowrank_dead_letters_total[15m]))"},
        ),
        plot(
            "Findings opened in 1 h",
            {"{{kind}}": "sum by (kind) (increase(slowrank_findings_opened_total[1h]))"},
        ),
        plot("Open findings", {"{{severity}}": "sum by (severity) (slowrank_findings_open)"}),
        plot(
            "GPU-hours lost in 1 h",
            {"{{cluster}}": "sum by (cluster) (increase(slowrank_gpu_hours_lost_total[1h]))"},
        ),
        plot(
            "Deliveries",
            {"{{result}}": "sum by (result) (rate(slowrank_webhook_deliveries_total[5m]))"},
            "cps",
        ),
        plot("Oldest delivery that is due", {"seconds": "max(slowrank_webhook_queue_oldest_seconds)"}, "s"),
        plot("Failing webhooks", {"{{endpoint}}": "max by (endpoint) (slowrank_webhook_failing)"}),
        plot("API, 95 % of the answers", {"{{route}}": f"histogram_quantile(0.95, {answers})"}, "s"),
        plot("Memory for jobs", {"{{what}} {{instance}}": "slowrank_job_memory_bytes"}, "bytes"),
        plot("Jobs", {"{{state}}": "sum by (state) (slowrank_jobs)"}),
        plot(
            "Exporters: spool",
            {"largest": "max(slowrank_exporter_spool_bytes)", "all": "sum(slowrank_exporter_spool_bytes)"},
            "bytes",
        ),
        plot(
            "Exporters: time of a tick",
            {"longest": "max(slowrank_exporter_scrape_duration_seconds)"},
            "s",
        ),
        plot(
            "Exporters: records lost in 15 min",
            {"spool full": "sum(increase(slowrank_exporter_spool_dropped_total[15m]))"},
        ),
    ]
    return dashboard("slowrank-itself", "slowrank / Itself", [], panels, [])


DASHBOARDS = {"fleet": fleet, "job": job, "slowrank": itself}


def text(name: str) -> str:
    """Return the JSON of a dashboard."""
    return json.dumps(DASHBOARDS[name](), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in DASHBOARDS:
        (FOLDER / f"{name}.json").write_text(text(name))
