-- migrate:up
-- What jobs have declared: starts, changes of schedule, evaluations, checkpoints. One row for all nodes of a job
-- that declare the same within ten seconds.
CREATE TABLE job_events (
  bucket timestamptz NOT NULL,
  cluster text NOT NULL,
  job_id text NOT NULL,
  code text NOT NULL,
  message text NOT NULL,
  PRIMARY KEY (cluster, job_id, bucket, code)
);
CREATE INDEX job_events_by_time ON job_events (bucket);

DO $$
DECLARE
  granted record;
BEGIN
  FOR granted IN SELECT * FROM (VALUES
    ('slowrank_owner', 'ALL ON job_events'),
    ('slowrank_streams', 'SELECT, INSERT, UPDATE, DELETE ON job_events'),
    ('slowrank_api', 'SELECT ON job_events')
  ) AS grants (role, what) LOOP
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = granted.role) THEN
      EXECUTE format('GRANT %s TO %I', granted.what, granted.role);
    END IF;
  END LOOP;
END $$;
