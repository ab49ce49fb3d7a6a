-- migrate:up
-- Signs links to findings that people open without a key: the notifier makes them, the API checks them.
CREATE TABLE link_key (
  only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
  secret bytea NOT NULL CHECK (length(secret) >= 32),
  created_at timestamptz NOT NULL DEFAULT now()
);

-- gen_random_uuid() is of the strong generator: 122 random bits each.
INSERT INTO link_key (secret)
  SELECT decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex');

DO $$
DECLARE
  granted record;
BEGIN
  FOR granted IN SELECT * FROM (VALUES
    ('slowrank_owner', 'ALL ON link_key'),
    ('slowrank_api', 'SELECT ON link_key'),
    ('slowrank_notifier', 'SELECT ON link_key')
  ) AS grants (role, what) LOOP
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = granted.role) THEN
      EXECUTE format('GRANT %s TO %I', granted.what, granted.role);
    END IF;
  END LOOP;
END $$;
