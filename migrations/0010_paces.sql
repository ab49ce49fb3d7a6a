-- migrate:up
-- How GPUs pace beside their peers: a row a GPU, job and UTC day, the memory of weeks. Sums are of whole
-- millionths of a log ratio and each hour is counted once, so that neither order nor repetition changes them.
CREATE TABLE paces (
  bucket timestamptz NOT NULL,
  cluster text NOT NULL,
  node text NOT NULL,
  gpu_index integer NOT NULL,
  job_id text NOT NULL,
  rank integer NOT NULL,
  hours integer NOT NULL,
  n integer NOT NULL,
  ratio_sum integer NOT NULL,
  spread_max integer NOT NULL,
  PRIMARY KEY (cluster, node, gpu_index, job_id, bucket)
-- A row changes up to 24 times: with room in its page it need not move, and no index changes.
) WITH (fillfactor = 70);
COMMENT ON COLUMN paces.hours IS 'bit h: hour h of the day is in the sum';
CREATE INDEX paces_by_time ON paces (bucket DESC);

DO $$
BEGIN
  IF EXISTS (SELECT 1 FROM pg_extension WHERE extname = 'timescaledb') THEN
    PERFORM create_hypertable('paces'::regclass, by_range('bucket', INTERVAL '7 days'));
  END IF;
END $$;

CREATE OR REPLACE FUNCTION drop_old_chunks(rollup text, before timestamptz) RETURNS integer
  LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  dropped integer;
BEGIN
  IF rollup NOT IN ('samples_10s', 'nic_10s', 'host_10s', 'steps_10s', 'paces') THEN
    RAISE EXCEPTION 'not a roll-up: %', rollup;
  END IF;
  EXECUTE 'SELECT count(*) FROM drop_chunks($1::regclass, older_than => $2)' INTO dropped USING rollup, before;
  RETURN dropped;
END $$;

DO $$
DECLARE
  granted record;
BEGIN
  FOR granted IN SELECT * FROM (VALUES
    ('slowrank_owner', 'ALL ON paces'),
    ('slowrank_streams', 'SELECT, INSERT, UPDATE, DELETE ON paces'),
    ('slowrank_api', 'SELECT ON paces')
  ) AS grants (role, what) LOOP
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = granted.role) THEN
      EXECUTE format('GRANT %s TO %I', granted.what, granted.role);
    END IF;
  END LOOP;
END $$;
