#!/bin/sh
# Write the hashed locks from pyproject.toml. They name no index, so they install from whichever one is configured.
set -eu
cd "$(dirname "$0")/.."
uv="${UV:-uv}"

lock() { # SOURCE NAME [OPTION]...
  source="$1" name="$2"
  shift 2
  "$uv" pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
    --no-header --no-annotate --quiet --no-emit-package slowrank --no-emit-package slowrank-server "$@" "$source" -o "requirements/$name.txt"
}

for role in exporter streams api embedded all bench dev; do
  lock pyproject.toml "$role" --extra "$role" "$@"
done
lock pyproject.toml image --extra exporter --extra streams --extra api --extra files --extra fast "$@"
printf 'hatchling>=1.25\neditables\n' | lock - build "$@"
