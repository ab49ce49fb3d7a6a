-- migrate:up
-- What findings have cost in a day or a week, for the numbers of the fleet, without reading their documents.
CREATE INDEX findings_cost ON findings (onset) INCLUDE (cluster, gpu_hours_lost)
  WHERE status <> 'suspected' AND group_key IS NULL AND NOT shadow;
