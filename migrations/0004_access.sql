-- migrate:up
CREATE TABLE api_keys (
  id text PRIMARY KEY,
  name text NOT NULL,
  sha256 bytea NOT NULL CHECK (length(sha256) = 32),
  scopes text[] NOT NULL,
  clusters text[] NOT NULL DEFAULT '{}',
  created_by text NOT NULL,
  created_at timestamptz NOT NULL,
  expires_at timestamptz,
  last_used_at timestamptz,
  revoked_at timestamptz
);

CREATE TABLE audit (
  seq bigint PRIMARY KEY,
  at timestamptz NOT NULL,
  actor text NOT NULL,
  action text NOT NULL,
  target text NOT NULL,
  detail jsonb NOT NULL,
  previous bytea NOT NULL,
  hash bytea NOT NULL
);

CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'the audit log is append-only' USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit
  FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only();

CREATE TABLE heartbeats (
  process text NOT NULL,
  instance text NOT NULL,
  at timestamptz NOT NULL,
  detail jsonb NOT NULL DEFAULT '{}',
  PRIMARY KEY (process, instance)
);
