-- migrate:up
-- What the findings of a job have cost by cause, from an index alone, without reading their documents.
-- Rewrites the table of findings, which is locked meanwhile: 25 s for a million of them on two cores.
DROP INDEX findings_job_cost;
ALTER TABLE findings ADD COLUMN cause text NOT NULL
  GENERATED ALWAYS AS (coalesce(doc #>> '{cause,hypothesis}', kind)) STORED;
CREATE INDEX findings_job_cost ON findings (job_id, cluster, kind, cause) INCLUDE (status, gpu_hours_lost)
  WHERE status <> 'suspected' AND group_key IS NULL AND NOT shadow;
