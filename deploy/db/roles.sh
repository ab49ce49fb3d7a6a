#!/bin/sh
# Runs once, when the database is created: a login for each process, member of the group the migrations give rights to.
set -eu
psql -v ON_ERROR_STOP=1 -v streams="$STREAMS_PASSWORD" -v api="$API_PASSWORD" -v notifier="$NOTIFIER_PASSWORD" \
  --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'SQL'
CREATE ROLE slowrank_streams NOLOGIN;
CREATE ROLE slowrank_api NOLOGIN;
CREATE ROLE slowrank_notifier NOLOGIN;
CREATE ROLE streams LOGIN PASSWORD :'streams' IN ROLE slowrank_streams;
CREATE ROLE api LOGIN PASSWORD :'api' IN ROLE slowrank_api;
CREATE ROLE notifier LOGIN PASSWORD :'notifier' IN ROLE slowrank_notifier;
SQL
