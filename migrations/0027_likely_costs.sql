-- migrate:up
-- Sums of costs leave out information that is rather wrong than right, as a stop that may be the end of its job. The
-- indexes hold what the sums need. The table is locked meanwhile.
DROP INDEX findings_job_cost;
CREATE INDEX findings_job_cost ON findings (job_id, cluster, kind, cause)
  INCLUDE (status, gpu_hours_lost, severity, confidence)
  WHERE was_open AND status <> 'suspected' AND group_key IS NULL AND NOT shadow;
DROP INDEX findings_cost;
CREATE INDEX findings_cost ON findings (onset) INCLUDE (cluster, gpu_hours_lost)
  WHERE was_open AND status <> 'suspected' AND group_key IS NULL AND NOT shadow
    AND (severity <> 'info' OR confidence >= 0.5);

CREATE OR REPLACE VIEW v_gpu_hours_lost AS
  SELECT cluster, kind, date_trunc('day', onset) AS day, sum(gpu_hours_lost) AS gpu_hours_lost,
         count(*) AS findings
  FROM findings
  WHERE was_open AND status <> 'suspected' AND group_key IS NULL AND NOT shadow
    AND (severity <> 'info' OR confidence >= 0.5)
  GROUP BY cluster, kind, date_trunc('day', onset);
