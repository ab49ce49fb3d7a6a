-- migrate:up
-- Where each rank of a job runs: node, GPU and parallel coordinates. Identity is joined when it is asked for
-- and is no column of the roll-ups.
CREATE TABLE ranks (
  cluster text NOT NULL,
  job_id text NOT NULL,
  attempt integer NOT NULL,
  rank integer NOT NULL,
  node text NOT NULL,
  gpu_index integer,
  dp integer,
  pp integer,
  tp integer,
  cp integer,
  ep integer,
  first_seen_at timestamptz NOT NULL,
  last_seen_at timestamptz NOT NULL,
  PRIMARY KEY (cluster, job_id, attempt, rank)
-- last_seen_at changes every five minutes: with room in its page a row need not move.
) WITH (fillfactor = 80);
CREATE INDEX ranks_by_node ON ranks (cluster, node);

CREATE TABLE jobs (
  cluster text NOT NULL,
  job_id text NOT NULL,
  attempt integer NOT NULL,
  world_size integer NOT NULL DEFAULT 0,
  first_step bigint NOT NULL,
  last_step bigint NOT NULL,
  first_seen_at timestamptz NOT NULL,
  last_seen_at timestamptz NOT NULL,
  PRIMARY KEY (cluster, job_id, attempt)
) WITH (fillfactor = 50);

ALTER TABLE nodes ADD COLUMN rack text, ADD COLUMN switch text;

-- One pass over the findings of each node, also where millions have ended.
CREATE INDEX findings_live_by_node ON findings (cluster, node) WHERE status IN ('open', 'acknowledged');
CREATE INDEX findings_by_serial ON findings (serial) WHERE serial IS NOT NULL;
CREATE INDEX findings_by_gpu ON findings (gpu_uuid) WHERE gpu_uuid IS NOT NULL;

DO $$
DECLARE
  granted record;
BEGIN
  FOR granted IN SELECT * FROM (VALUES
    ('slowrank_owner', 'ALL ON ranks, jobs'),
    ('slowrank_streams', 'SELECT, INSERT, UPDATE, DELETE ON ranks, jobs'),
    ('slowrank_api', 'SELECT ON ranks, jobs')
  ) AS grants (role, what) LOOP
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = granted.role) THEN
      EXECUTE format('GRANT %s TO %I', granted.what, granted.role);
    END IF;
  END LOOP;
END $$;
