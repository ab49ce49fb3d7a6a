#!/bin/sh
# Write the hashed locks from pyproject.toml. They name no index, so they install from whichever one is configured.
set -eu
cd "$(dirname "$0")/.."
uv="${UV:-uv}"
options="--universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate --quiet"
for role in exporter streams api embedded all bench dev; do
  # shellcheck disable=SC2086
  "$uv" pip compile $options --no-emit-package slowrank --extra "$role" pyproject.toml -o "requirements/$role.txt" "$@"
done
# shellcheck disable=SC2086
printf 'hatchling>=1.25\neditables\n' | "$uv" pip compile $options - -o requirements/build.txt "$@"
