-- migrate:up
-- Recordings that were posted to be run through the detectors, and what was found in them.
CREATE TABLE backtests (
  id text PRIMARY KEY,
  created_by text NOT NULL,
  created_at timestamptz NOT NULL,
  state text NOT NULL CHECK (state IN ('waiting', 'running', 'done', 'failed')),
  -- While it runs: until when its runner has it.
  leased_until timestamptz,
  attempts integer NOT NULL DEFAULT 0,
  ended_at timestamptz,
  -- Compressed NDJSON; removed at the end.
  recording bytea,
  result jsonb,
  error text NOT NULL DEFAULT ''
);
CREATE INDEX backtests_by_creation ON backtests (created_at DESC, id);

DO $$
DECLARE
  granted record;
BEGIN
  FOR granted IN SELECT * FROM (VALUES
    ('slowrank_owner', 'ALL ON backtests'),
    ('slowrank_api', 'SELECT, INSERT, UPDATE, DELETE ON backtests')
  ) AS grants (role, what) LOOP
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = granted.role) THEN
      EXECUTE format('GRANT %s TO %I', granted.what, granted.role);
    END IF;
  END LOOP;
END $$;
