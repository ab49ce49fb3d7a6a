-- migrate:up
-- What dashboards may read: a stable surface over tables that may change.
CREATE VIEW v_findings AS
  SELECT id, dedup_key, group_key, cluster, kind, severity, status, title, subject_type, node, gpu_index,
         gpu_uuid, rank, job_id, detector, onset, detected_at, last_seen_at, resolved_at, confidence, score,
         slowdown_ratio, job_slowdown_ratio, gpu_hours_lost, gpu_hours_lost_per_hour, occurrences,
         doc #>> '{cause,hypothesis}' AS cause, doc #>> '{action,code}' AS action, updated_at
  FROM findings;

CREATE VIEW v_nodes AS
  SELECT n.cluster, n.node, n.last_seen_at, n.gpus, n.nics, n.job_id,
         count(f.id) FILTER (WHERE f.status IN ('open', 'acknowledged')) AS open_findings,
         max(f.severity_rank) FILTER (WHERE f.status IN ('open', 'acknowledged')) AS worst_severity_rank
  FROM nodes n LEFT JOIN findings f ON f.cluster = n.cluster AND f.node = n.node
  GROUP BY n.cluster, n.node;

CREATE VIEW v_step_time AS
  SELECT bucket, cluster, job_id, attempt, count(*) AS ranks, min(first_step) AS first_step,
         max(last_step) AS last_step,
         percentile_cont(0.05) WITHIN GROUP (ORDER BY step_seconds_sum / n_steps) AS p05,
         percentile_cont(0.5) WITHIN GROUP (ORDER BY step_seconds_sum / n_steps) AS median,
         percentile_cont(0.95) WITHIN GROUP (ORDER BY step_seconds_sum / n_steps) AS p95,
         max(step_seconds_max) AS slowest
  FROM steps_10s
  GROUP BY bucket, cluster, job_id, attempt;

CREATE VIEW v_rank_heatmap AS
  SELECT bucket, cluster, job_id, attempt, rank, node, step_seconds_sum / n_steps AS step_seconds,
         compute_seconds_sum / n_steps AS compute_seconds, wait_seconds_sum / n_steps AS wait_seconds
  FROM steps_10s;

CREATE VIEW v_gpu_hours_lost AS
  SELECT cluster, kind, date_trunc('day', onset) AS day, sum(gpu_hours_lost) AS gpu_hours_lost,
         count(*) AS findings
  FROM findings
  WHERE status <> 'suspected' AND group_key IS NULL
  GROUP BY cluster, kind, date_trunc('day', onset);
