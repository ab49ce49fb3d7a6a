-- migrate:up
-- The route to a webhook (alerts.route): which findings besides its filters, and when.
ALTER TABLE webhooks
  ADD COLUMN matchers jsonb NOT NULL DEFAULT '[]',
  ADD COLUMN wait_seconds integer NOT NULL DEFAULT 0 CHECK (wait_seconds >= 0),
  ADD COLUMN unless_acknowledged boolean NOT NULL DEFAULT false,
  ADD COLUMN interval_seconds integer NOT NULL DEFAULT 0 CHECK (interval_seconds >= 0),
  ADD COLUMN repeat_seconds integer CHECK (repeat_seconds > 0),
  -- The body that a person wrote, of webhooks of the format template.
  ADD COLUMN template jsonb;

-- Weekly maintenance windows (alerts.recurrence).
ALTER TABLE silences ADD COLUMN recurrence jsonb;

CREATE TABLE inhibitions (
  id text PRIMARY KEY,
  source jsonb NOT NULL,
  target jsonb NOT NULL,
  equal text[] NOT NULL,
  created_by text NOT NULL,
  comment text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);

DO $$
DECLARE
  granted record;
BEGIN
  FOR granted IN SELECT * FROM (VALUES
    ('slowrank_owner', 'ALL ON inhibitions'),
    ('slowrank_api', 'SELECT, INSERT, DELETE ON inhibitions'),
    ('slowrank_streams', 'SELECT ON inhibitions'),
    ('slowrank_notifier', 'SELECT ON inhibitions')
  ) AS grants (role, what) LOOP
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = granted.role) THEN
      EXECUTE format('GRANT %s TO %I', granted.what, granted.role);
    END IF;
  END LOOP;
END $$;
