-- migrate:up
-- What a finding's plots show, kept longer than the roll-ups it was read from (store.evidence.freeze).
CREATE TABLE finding_evidence (
  finding_id text PRIMARY KEY REFERENCES findings ON DELETE CASCADE,
  -- The onset that the window lies around: a finding whose onset is moved later is read again.
  onset timestamptz NOT NULL,
  taken_at timestamptz NOT NULL,
  doc jsonb NOT NULL
);

-- The rows of one job in some minutes, without reading those of all its ranks or of all jobs.
CREATE INDEX steps_10s_by_job ON steps_10s (cluster, job_id, bucket);

DO $$
DECLARE
  granted record;
BEGIN
  FOR granted IN SELECT * FROM (VALUES
    ('slowrank_owner', 'ALL ON finding_evidence'),
    ('slowrank_streams', 'SELECT, INSERT, UPDATE ON finding_evidence'),
    ('slowrank_api', 'SELECT ON finding_evidence'),
    ('slowrank_notifier', 'SELECT ON finding_evidence')
  ) AS grants (role, what) LOOP
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = granted.role) THEN
      EXECUTE format('GRANT %s TO %I', granted.what, granted.role);
    END IF;
  END LOOP;
END $$;
