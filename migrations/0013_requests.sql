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

-- No role of a process may remove findings: this removes those that came to nothing before a time, at most so
-- many of them, with all that refers to them, and returns how many. Kept are those on which a person acted,
-- those that were open and recovered, and those of which a delivery is still waiting (store.leases.WAITING).
CREATE FUNCTION prune_findings(before timestamptz, most integer) RETURNS integer
  LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  pruned integer;
BEGIN
  DELETE FROM findings WHERE id = ANY(ARRAY(
    SELECT f.id FROM findings f
    WHERE f.status IN ('suspected', 'expired', 'resolved') AND f.last_seen_at < before
      AND coalesce(f.resolved_at, f.last_seen_at) < before
      AND f.acknowledged IS NULL AND f.closed IS NULL AND f.feedback IS NULL
      AND (f.status <> 'resolved' OR NOT EXISTS (SELECT 1 FROM finding_history h
        WHERE h.finding_id = f.id AND h.event IN ('finding.opened', 'finding.reopened')))
      AND NOT EXISTS (SELECT 1 FROM events e JOIN deliveries d ON d.event_id = e.id
        WHERE e.finding_id = f.id AND (d.state = 'pending' OR (d.state = 'muted' AND e.type = 'finding.resolved')))
    LIMIT most));
  GET DIAGNOSTICS pruned = ROW_COUNT;
  RETURN pruned;
END $$;
REVOKE ALL ON FUNCTION prune_findings(timestamptz, integer) FROM PUBLIC;

DO $$
DECLARE
  granted record;
BEGIN
  FOR granted IN SELECT * FROM (VALUES
    ('slowrank_owner', 'ALL ON requests'),
    ('slowrank_api', 'SELECT, INSERT, UPDATE, DELETE ON requests'),
    ('slowrank_notifier', 'SELECT, DELETE ON requests'),
    ('slowrank_streams', 'EXECUTE ON FUNCTION prune_findings(timestamptz, integer)')
  ) AS grants (role, what) LOOP
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = granted.role) THEN
      EXECUTE format('GRANT %s TO %I', granted.what, granted.role);
    END IF;
  END LOOP;
END $$;
