-- migrate:up
-- Each process may do its own work and no more. A role that could not be created is passed over.
DO $$
DECLARE
  granted record;
BEGIN
  FOR granted IN SELECT * FROM (VALUES
    ('slowrank_owner', 'ALL ON ALL TABLES IN SCHEMA public'),
    ('slowrank_owner', 'ALL ON ALL SEQUENCES IN SCHEMA public'),
    ('slowrank_streams', 'SELECT, INSERT, UPDATE ON findings'),
    ('slowrank_streams', 'SELECT, INSERT ON finding_history, events, deliveries'),
    ('slowrank_streams', 'SELECT ON webhooks, silences'),
    ('slowrank_streams', 'SELECT, INSERT, UPDATE, DELETE ON samples_10s, nic_10s, host_10s, steps_10s'),
    ('slowrank_streams', 'SELECT, INSERT, UPDATE ON nodes, heartbeats'),
    ('slowrank_streams', 'EXECUTE ON FUNCTION drop_old_chunks(text, timestamptz)'),
    ('slowrank_api', 'SELECT ON findings, finding_history, events, webhooks, deliveries, delivery_attempts'),
    ('slowrank_api', 'SELECT ON silences, api_keys, audit, nodes, heartbeats'),
    ('slowrank_api', 'SELECT ON samples_10s, nic_10s, host_10s, steps_10s'),
    ('slowrank_api', 'SELECT ON v_findings, v_nodes, v_step_time, v_rank_heatmap, v_gpu_hours_lost'),
    ('slowrank_api', 'UPDATE (status, severity, acknowledged, closed, feedback, resolved_at, version, updated_at)'
                     ' ON findings'),
    ('slowrank_api', 'INSERT ON finding_history, events, deliveries, audit'),
    ('slowrank_api', 'INSERT, UPDATE, DELETE ON webhooks, silences'),
    ('slowrank_api', 'INSERT, UPDATE ON api_keys, heartbeats'),
    ('slowrank_api', 'INSERT ON webhook_secrets'),
    ('slowrank_api', 'SELECT (webhook_id, created_at, expires_at), UPDATE (expires_at) ON webhook_secrets'),
    ('slowrank_api', 'UPDATE (state, next_attempt_at, attempts, leased_until) ON deliveries'),
    ('slowrank_notifier', 'SELECT ON findings, events, webhooks, webhook_secrets, silences'),
    ('slowrank_notifier', 'SELECT, UPDATE ON deliveries'),
    ('slowrank_notifier', 'SELECT, INSERT ON delivery_attempts'),
    ('slowrank_notifier', 'UPDATE (enabled, failing_since, disabled_reason, updated_at) ON webhooks'),
    ('slowrank_notifier', 'DELETE ON webhook_secrets, events'),
    ('slowrank_notifier', 'SELECT, INSERT, UPDATE ON heartbeats'),
    ('slowrank_grafana', 'SELECT ON v_findings, v_nodes, v_step_time, v_rank_heatmap, v_gpu_hours_lost')
  ) AS grants (role, what) LOOP
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = granted.role) THEN
      EXECUTE format('GRANT %s TO %I', granted.what, granted.role);
    END IF;
  END LOOP;
END $$;
