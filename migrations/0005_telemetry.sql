-- migrate:up
CREATE TABLE samples_10s (
  bucket timestamptz NOT NULL,
  cluster text NOT NULL,
  node text NOT NULL,
  instance text NOT NULL,
  n integer NOT NULL,
  utilization_ratio_mean real,
  tensor_active_ratio_mean real,
  dram_active_ratio_mean real,
  clock_sm_hz_mean real,
  power_watts_mean real,
  temp_celsius_mean real,
  pcie_tx_bytes_per_second_mean real,
  pcie_rx_bytes_per_second_mean real,
  clock_sm_hz_min real,
  temp_margin_celsius_min real,
  pcie_link_gen_min real,
  pcie_link_width_min real,
  power_watts_max real,
  temp_celsius_max real,
  temp_mem_celsius_max real,
  memory_used_bytes_max real,
  row_remap_pending_max real,
  row_remap_failed_max real,
  throttle_reasons_or real,
  energy_millijoules_delta real,
  throttle_power_nanoseconds_delta real,
  throttle_thermal_nanoseconds_delta real,
  xid_events_delta real,
  ecc_corrected_delta real,
  ecc_uncorrected_delta real,
  pcie_replay_delta real,
  nvlink_crc_errors_delta real,
  nvlink_replay_errors_delta real,
  nvlink_recovery_errors_delta real,
  PRIMARY KEY (cluster, node, instance, bucket)
);
CREATE INDEX samples_10s_by_time ON samples_10s (bucket DESC);

CREATE TABLE nic_10s (
  bucket timestamptz NOT NULL,
  cluster text NOT NULL,
  node text NOT NULL,
  instance text NOT NULL,
  n integer NOT NULL,
  port_up_min real,
  port_speed_bits_per_second_min real,
  port_rx_bytes_delta real,
  port_tx_bytes_delta real,
  port_rx_packets_delta real,
  port_tx_packets_delta real,
  port_rx_errors_delta real,
  port_tx_errors_delta real,
  port_rx_dropped_delta real,
  port_tx_dropped_delta real,
  port_carrier_changes_delta real,
  port_link_downed_delta real,
  port_link_error_recovery_delta real,
  port_symbol_errors_delta real,
  port_xmit_discards_delta real,
  port_xmit_wait_ticks_delta real,
  port_out_of_sequence_delta real,
  port_local_ack_timeout_delta real,
  port_roce_slow_restart_delta real,
  port_cnp_handled_delta real,
  PRIMARY KEY (cluster, node, instance, bucket)
);
CREATE INDEX nic_10s_by_time ON nic_10s (bucket DESC);

CREATE TABLE host_10s (
  bucket timestamptz NOT NULL,
  cluster text NOT NULL,
  node text NOT NULL,
  instance text NOT NULL,
  n integer NOT NULL,
  cpu_utilization_ratio_mean real,
  cpu_iowait_ratio_mean real,
  cpu_steal_ratio_mean real,
  load1_mean real,
  run_queue_mean real,
  clock_offset_seconds_mean real,
  pressure_cpu_some_ratio_mean real,
  pressure_memory_some_ratio_mean real,
  pressure_io_some_ratio_mean real,
  memory_available_bytes_min real,
  run_queue_max real,
  exporter_scrape_duration_seconds_max real,
  exporter_spool_bytes_max real,
  oom_kills_delta real,
  major_page_faults_delta real,
  context_switches_delta real,
  exporter_spool_dropped_delta real,
  exporter_step_rows_dropped_delta real,
  PRIMARY KEY (cluster, node, instance, bucket)
);
CREATE INDEX host_10s_by_time ON host_10s (bucket DESC);

CREATE TABLE steps_10s (
  bucket timestamptz NOT NULL,
  cluster text NOT NULL,
  job_id text NOT NULL,
  attempt integer NOT NULL,
  rank integer NOT NULL,
  node text NOT NULL,
  n_steps integer NOT NULL,
  step_seconds_sum double precision,
  step_seconds_max double precision,
  compute_seconds_sum double precision,
  compute_seconds_max double precision,
  wait_seconds_sum double precision,
  first_step bigint NOT NULL,
  last_step bigint NOT NULL,
  PRIMARY KEY (cluster, job_id, attempt, rank, bucket)
);
CREATE INDEX steps_10s_by_time ON steps_10s (bucket DESC);

-- The last word of every node, kept by the writer: finding it in the roll-ups would read them all.
CREATE TABLE nodes (
  cluster text NOT NULL,
  node text NOT NULL,
  last_seen_at timestamptz NOT NULL,
  boot_id text NOT NULL,
  seq bigint NOT NULL,
  gpus integer NOT NULL,
  nics integer NOT NULL,
  job_id text,
  PRIMARY KEY (cluster, node)
);

-- Plain PostgreSQL keeps ordinary tables; TimescaleDB makes hypertables of them; its community edition
-- compresses them as well. `timescaledb.disable_load` exists exactly where its library is preloaded, and
-- creating the extension without the library would end the session.
DO $$
DECLARE
  name text;
BEGIN
  IF current_setting('timescaledb.disable_load', true) IS NULL
     OR NOT EXISTS (SELECT 1 FROM pg_available_extensions WHERE pg_available_extensions.name = 'timescaledb')
  THEN
    RETURN;
  END IF;
  BEGIN
    CREATE EXTENSION IF NOT EXISTS timescaledb;
  EXCEPTION WHEN insufficient_privilege THEN
    RAISE NOTICE 'plain tables: % may not create the extension timescaledb', current_user;
    RETURN;
  END;
  FOREACH name IN ARRAY ARRAY['samples_10s', 'nic_10s', 'host_10s', 'steps_10s'] LOOP
    PERFORM create_hypertable(name::regclass, by_range('bucket', INTERVAL '6 hours'), if_not_exists => true);
  END LOOP;
  IF current_setting('timescaledb.license', true) IS DISTINCT FROM 'timescale' THEN
    RETURN;
  END IF;
  BEGIN
    FOREACH name IN ARRAY ARRAY['samples_10s', 'nic_10s', 'host_10s', 'steps_10s'] LOOP
      EXECUTE format('ALTER TABLE %I SET (timescaledb.compress, timescaledb.compress_orderby = ''bucket'', '
                     'timescaledb.compress_segmentby = %L)', name,
                     CASE name WHEN 'steps_10s' THEN 'cluster,job_id,attempt,rank' ELSE 'cluster,node,instance' END);
      PERFORM add_compression_policy(name::regclass, INTERVAL '12 hours', if_not_exists => true);
    END LOOP;
  EXCEPTION WHEN feature_not_supported THEN
    RAISE NOTICE 'no compression: this edition of TimescaleDB lacks it';
  END;
END $$;

-- Chunks can be dropped only by the owner of the table; the retention job is none.
CREATE FUNCTION drop_old_chunks(rollup text, before timestamptz) RETURNS integer
  LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  dropped integer;
BEGIN
  IF rollup NOT IN ('samples_10s', 'nic_10s', 'host_10s', 'steps_10s') THEN
    RAISE EXCEPTION 'not a roll-up: %', rollup;
  END IF;
  EXECUTE 'SELECT count(*) FROM drop_chunks($1::regclass, older_than => $2)' INTO dropped USING rollup, before;
  RETURN dropped;
END $$;
REVOKE ALL ON FUNCTION drop_old_chunks(text, timestamptz) FROM PUBLIC;
