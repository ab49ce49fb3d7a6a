-- migrate:up
-- Whether a finding has ever been open: one that was only suspected and has ended is in no list and costs nothing.
-- Those of before count as opened unless their history says otherwise. The table is locked meanwhile.
ALTER TABLE findings ADD COLUMN was_open boolean NOT NULL DEFAULT true;
ALTER TABLE findings ALTER COLUMN was_open SET DEFAULT false;
UPDATE findings SET was_open = false
  WHERE status NOT IN ('open', 'acknowledged') AND NOT EXISTS (SELECT 1 FROM finding_history h
    WHERE h.finding_id = findings.id AND h.event IN ('finding.opened', 'finding.reopened'));

-- A trigger, so that a worker of the release before sets it, too.
CREATE FUNCTION finding_opens() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.was_open := true;
  RETURN NEW;
END $$;
CREATE TRIGGER finding_opens BEFORE INSERT OR UPDATE ON findings FOR EACH ROW
  WHEN (NEW.status IN ('open', 'acknowledged') AND NOT NEW.was_open) EXECUTE FUNCTION finding_opens();

DROP INDEX findings_job_cost;
CREATE INDEX findings_job_cost ON findings (job_id, cluster, kind, cause) INCLUDE (status, gpu_hours_lost)
  WHERE was_open AND status <> 'suspected' AND group_key IS NULL AND NOT shadow;
DROP INDEX findings_cost;
CREATE INDEX findings_cost ON findings (onset) INCLUDE (cluster, gpu_hours_lost)
  WHERE was_open AND status <> 'suspected' AND group_key IS NULL AND NOT shadow;

CREATE OR REPLACE VIEW v_findings AS
  SELECT id, dedup_key, group_key, cluster, kind, severity, status, title, subject_type, node, gpu_index,
         gpu_uuid, rank, job_id, detector, onset, detected_at, last_seen_at, resolved_at, confidence, score,
         slowdown_ratio, job_slowdown_ratio, gpu_hours_lost, gpu_hours_lost_per_hour, occurrences,
         doc #>> '{cause,hypothesis}' AS cause, doc #>> '{action,code}' AS action, updated_at
  FROM findings
  WHERE NOT shadow AND (was_open OR status = 'suspected');

CREATE OR REPLACE VIEW v_gpu_hours_lost AS
  SELECT cluster, kind, date_trunc('day', onset) AS day, sum(gpu_hours_lost) AS gpu_hours_lost,
         count(*) AS findings
  FROM findings
  WHERE was_open AND status <> 'suspected' AND group_key IS NULL AND NOT shadow
  GROUP BY cluster, kind, date_trunc('day', onset);
