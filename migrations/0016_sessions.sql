-- migrate:up
-- Browsers that are signed in, and links that sign one in once: the digest of a random token, never the token.
CREATE TABLE sessions (
  sha256 bytea PRIMARY KEY CHECK (length(sha256) = 32),
  use text NOT NULL CHECK (use IN ('session', 'sign_in')),
  key_id text NOT NULL REFERENCES api_keys ON DELETE CASCADE,
  created_at timestamptz NOT NULL,
  expires_at timestamptz NOT NULL
);
CREATE INDEX sessions_by_expiry ON sessions (expires_at);

DO $$
DECLARE
  granted record;
BEGIN
  FOR granted IN SELECT * FROM (VALUES
    ('slowrank_owner', 'ALL ON sessions'),
    ('slowrank_api', 'SELECT, INSERT, DELETE ON sessions')
  ) AS grants (role, what) LOOP
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = granted.role) THEN
      EXECUTE format('GRANT %s TO %I', granted.what, granted.role);
    END IF;
  END LOOP;
END $$;
