-- migrate:up
-- Deliveries of one finding to one webhook go in order; what a newer state has overtaken is never sent.
ALTER TABLE deliveries DROP CONSTRAINT deliveries_state_check;
ALTER TABLE deliveries ADD CONSTRAINT deliveries_state_check
  CHECK (state IN ('pending', 'muted', 'delivered', 'failed', 'superseded'));
ALTER TABLE deliveries ADD COLUMN superseded_by text;

-- Attempts in a row that failed; failing_since is the first of them.
ALTER TABLE webhooks ADD COLUMN failures integer NOT NULL DEFAULT 0;
UPDATE webhooks SET failures = 3 WHERE failing_since IS NOT NULL;

DO $$
BEGIN
  IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'slowrank_notifier') THEN
    GRANT UPDATE (failures) ON webhooks TO slowrank_notifier;
  END IF;
END $$;
