#!/bin/sh
# Passwords come as files only root may read; the scripts that run at the database's creation run as postgres.
set -eu
STREAMS_PASSWORD="$(cat /run/secrets/db_streams_password)"
API_PASSWORD="$(cat /run/secrets/db_api_password)"
NOTIFIER_PASSWORD="$(cat /run/secrets/db_notifier_password)"
export STREAMS_PASSWORD API_PASSWORD NOTIFIER_PASSWORD
exec docker-entrypoint.sh "$@"
