-- migrate:up
-- Seconds that a rank spent saving, for the step band of the page of a job; NULL where the job does not say.
ALTER TABLE steps_10s ADD COLUMN checkpoint_seconds_sum double precision;
