-- migrate:up
-- The outbox: written in the transaction that changes the finding, so that no change goes untold.
CREATE TABLE events (
  id text PRIMARY KEY,
  seq bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
  type text NOT NULL,
  finding_id text REFERENCES findings ON DELETE CASCADE,
  finding_version bigint,
  at timestamptz NOT NULL,
  body jsonb NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  UNIQUE (finding_id, finding_version, type)
);
CREATE INDEX events_by_creation ON events (created_at);

CREATE TABLE webhooks (
  id text PRIMARY KEY,
  name text NOT NULL,
  url text NOT NULL,
  format text NOT NULL,
  events text[] NOT NULL DEFAULT '{}',
  min_severity text NOT NULL DEFAULT 'info' CHECK (min_severity IN ('critical', 'error', 'warning', 'info')),
  clusters text[] NOT NULL DEFAULT '{}',
  enabled boolean NOT NULL DEFAULT true,
  failing_since timestamptz,
  disabled_reason text NOT NULL DEFAULT '',
  created_by text NOT NULL,
  created_at timestamptz NOT NULL,
  updated_at timestamptz NOT NULL
);

-- HMAC needs the secret itself. It stands apart from the endpoint so that only the notifier may read it.
CREATE TABLE webhook_secrets (
  webhook_id text NOT NULL REFERENCES webhooks ON DELETE CASCADE,
  secret text NOT NULL,
  created_at timestamptz NOT NULL,
  expires_at timestamptz,
  PRIMARY KEY (webhook_id, created_at)
);

CREATE TABLE deliveries (
  id text PRIMARY KEY,
  event_id text NOT NULL REFERENCES events ON DELETE CASCADE,
  webhook_id text NOT NULL REFERENCES webhooks ON DELETE CASCADE,
  state text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'muted', 'delivered', 'failed')),
  attempts integer NOT NULL DEFAULT 0,
  next_attempt_at timestamptz NOT NULL,
  leased_until timestamptz,
  muted_by text,
  last_status integer,
  last_error text NOT NULL DEFAULT '',
  last_attempt_at timestamptz,
  delivered_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT now(),
  UNIQUE (event_id, webhook_id)
);
CREATE INDEX deliveries_due ON deliveries (next_attempt_at) WHERE state IN ('pending', 'muted');
CREATE INDEX deliveries_by_webhook ON deliveries (webhook_id, created_at DESC, id);

CREATE TABLE delivery_attempts (
  delivery_id text NOT NULL REFERENCES deliveries ON DELETE CASCADE,
  attempt integer NOT NULL,
  at timestamptz NOT NULL,
  status integer,
  error text NOT NULL,
  excerpt text NOT NULL,
  seconds double precision NOT NULL,
  PRIMARY KEY (delivery_id, attempt)
);
