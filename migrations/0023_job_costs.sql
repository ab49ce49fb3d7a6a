-- migrate:up
-- What the findings of a job have cost, for the list of jobs, without reading their documents.
CREATE INDEX findings_job_cost ON findings (job_id) INCLUDE (cluster, status, gpu_hours_lost)
  WHERE status <> 'suspected' AND group_key IS NULL AND NOT shadow;
