-- migrate:up
-- What came of requests with an Idempotency-Key, so that one sent again is not carried out again.
CREATE TABLE requests (
  key_id text NOT NULL,
  name text NOT NULL,
  fingerprint bytea NOT NULL,
  -- NULL while it is carried out.
  status integer,
  media_type text NOT NULL DEFAULT '',
  -- NULL where the answer held a secret, which is stored nowhere.
  body text,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (key_id, name)
);
CREATE INDEX requests_by_key ON requests (key_id, created_at);
CREATE INDEX requests_by_time ON requests (created_at);

DO $$
DECLARE
  granted record;
BEGIN
  FOR granted IN SELECT * FROM (VALUES
    ('slowrank_owner', 'ALL ON requests'),
    ('slowrank_api', 'SELECT, INSERT, UPDATE, DELETE ON requests'),
    ('slowrank_notifier', 'SELECT, DELETE ON requests'),
    -- Of suspicions that came to nothing; what refers to a finding goes with it.
    ('slowrank_streams', 'DELETE ON findings')
  ) AS grants (role, what) LOOP
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = granted.role) THEN
      EXECUTE format('GRANT %s TO %I', granted.what, granted.role);
    END IF;
  END LOOP;
END $$;
