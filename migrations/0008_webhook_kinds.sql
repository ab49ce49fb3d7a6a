-- migrate:up
ALTER TABLE webhooks ADD COLUMN kinds text[] NOT NULL DEFAULT '{}';

-- The notifier reports an endpoint that never answers as a finding of its own (self.webhook_failing).
DO $$
DECLARE
  granted text;
BEGIN
  IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'slowrank_notifier') THEN
    RETURN;
  END IF;
  FOREACH granted IN ARRAY ARRAY[
    'INSERT, UPDATE ON findings', 'SELECT, INSERT ON finding_history', 'INSERT ON events, deliveries'] LOOP
    EXECUTE format('GRANT %s TO slowrank_notifier', granted);
  END LOOP;
END $$;
