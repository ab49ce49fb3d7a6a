-- migrate:up
-- Few deliveries are under way at once; each claim asks for them, whatever the length of the log.
CREATE INDEX deliveries_leased ON deliveries (leased_until) WHERE leased_until IS NOT NULL;
