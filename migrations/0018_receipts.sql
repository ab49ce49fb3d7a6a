-- migrate:up
-- What a receiver answered that later deliveries of the finding need: the first mail of a thread, a message
-- to be updated.
ALTER TABLE deliveries ADD COLUMN receipt text NOT NULL DEFAULT '';

-- A mail carries the plots of its finding, which are read from the roll-ups until they are stored.
DO $$
BEGIN
  IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'slowrank_notifier') THEN
    GRANT SELECT ON samples_10s, nic_10s, host_10s, steps_10s, nodes, ranks TO slowrank_notifier;
  END IF;
END $$;
