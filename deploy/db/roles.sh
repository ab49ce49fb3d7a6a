#!/bin/sh
# Runs once, when the database is created: the login roles of the processes. The migrations give them their rights.
set -eu
psql -v ON_ERROR_STOP=1 -v streams="$STREAMS_PASSWORD" -v api="$API_PASSWORD" \
  --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'SQL'
CREATE ROLE slowrank_streams LOGIN PASSWORD :'streams';
CREATE ROLE slowrank_api LOGIN PASSWORD :'api';
SQL
