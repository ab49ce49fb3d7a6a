#!/bin/sh
# Passwords come as files only root may read; the scripts that run at the database's creation run as postgres.
set -eu
STREAMS_PASSWORD="$(cat /run/secrets/db_streams_password)"
API_PASSWORD="$(cat /run/secrets/db_api_password)"
export STREAMS_PASSWORD API_PASSWORD
exec docker-entrypoint.sh "$@"
