-- migrate:up
CREATE TABLE findings (
  id text PRIMARY KEY,
  dedup_key text NOT NULL,
  group_key text,
  cluster text NOT NULL,
  kind text NOT NULL,
  severity text NOT NULL CHECK (severity IN ('critical', 'error', 'warning', 'info')),
  status text NOT NULL CHECK (status IN ('suspected', 'open', 'acknowledged', 'resolved', 'expired')),
  title text NOT NULL,
  subject_type text NOT NULL,
  node text,
  gpu_index integer,
  gpu_uuid text,
  serial text,
  rank integer,
  job_id text,
  detector text NOT NULL,
  onset timestamptz NOT NULL,
  detected_at timestamptz NOT NULL,
  last_seen_at timestamptz NOT NULL,
  resolved_at timestamptz,
  as_of timestamptz NOT NULL,
  confidence double precision NOT NULL,
  score double precision NOT NULL,
  slowdown_ratio double precision,
  job_slowdown_ratio double precision,
  gpu_hours_lost double precision NOT NULL DEFAULT 0,
  gpu_hours_lost_per_hour double precision NOT NULL DEFAULT 0,
  severity_rank smallint NOT NULL GENERATED ALWAYS AS (
    CASE severity WHEN 'critical' THEN 3 WHEN 'error' THEN 2 WHEN 'warning' THEN 1 ELSE 0 END) STORED,
  occurrences integer NOT NULL,
  -- What the detectors say (finding.v1); people's words stand in the columns below and outlive its versions.
  doc jsonb NOT NULL,
  acknowledged jsonb,
  closed jsonb,
  feedback jsonb,
  version bigint NOT NULL DEFAULT 1,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX findings_by_cause ON findings (dedup_key, onset DESC);
CREATE INDEX findings_by_status ON findings (status, gpu_hours_lost_per_hour DESC, id);
CREATE INDEX findings_by_onset ON findings (onset DESC, id);
CREATE INDEX findings_by_detection ON findings (detected_at DESC, id);
CREATE INDEX findings_by_node ON findings (cluster, node);
CREATE INDEX findings_by_job ON findings (job_id);
CREATE INDEX findings_by_update ON findings (updated_at);

CREATE TABLE finding_history (
  finding_id text NOT NULL REFERENCES findings ON DELETE CASCADE,
  version bigint NOT NULL,
  event text NOT NULL,
  at timestamptz NOT NULL,
  actor text NOT NULL,
  status text NOT NULL,
  severity text NOT NULL,
  note text NOT NULL DEFAULT '',
  PRIMARY KEY (finding_id, version, event)
);

CREATE TABLE silences (
  id text PRIMARY KEY,
  matchers jsonb NOT NULL,
  starts_at timestamptz NOT NULL,
  ends_at timestamptz NOT NULL CHECK (ends_at >= starts_at),
  created_by text NOT NULL,
  comment text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX silences_by_end ON silences (ends_at);
