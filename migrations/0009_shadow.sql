-- migrate:up
-- Findings of detectors on trial: stored, told to nobody, and left out of what dashboards count.
ALTER TABLE findings ADD COLUMN shadow boolean NOT NULL DEFAULT false;

CREATE OR REPLACE VIEW v_findings AS
  SELECT id, dedup_key, group_key, cluster, kind, severity, status, title, subject_type, node, gpu_index,
         gpu_uuid, rank, job_id, detector, onset, detected_at, last_seen_at, resolved_at, confidence, score,
         slowdown_ratio, job_slowdown_ratio, gpu_hours_lost, gpu_hours_lost_per_hour, occurrences,
         doc #>> '{cause,hypothesis}' AS cause, doc #>> '{action,code}' AS action, updated_at
  FROM findings
  WHERE NOT shadow;

CREATE OR REPLACE VIEW v_nodes AS
  SELECT n.cluster, n.node, n.last_seen_at, n.gpus, n.nics, n.job_id,
         count(f.id) FILTER (WHERE f.status IN ('open', 'acknowledged')) AS open_findings,
         max(f.severity_rank) FILTER (WHERE f.status IN ('open', 'acknowledged')) AS worst_severity_rank
  FROM nodes n LEFT JOIN findings f ON f.cluster = n.cluster AND f.node = n.node AND NOT f.shadow
  GROUP BY n.cluster, n.node;

CREATE OR REPLACE VIEW v_gpu_hours_lost AS
  SELECT cluster, kind, date_trunc('day', onset) AS day, sum(gpu_hours_lost) AS gpu_hours_lost,
         count(*) AS findings
  FROM findings
  WHERE status <> 'suspected' AND group_key IS NULL AND NOT shadow
  GROUP BY cluster, kind, date_trunc('day', onset);
