#!/usr/bin/env bash
# Installs Chromium for the tests that look at pages, from the distribution's packages. Where that is not allowed or not
# possible, those tests skip and say so; under CI=true they fail.
set -euo pipefail

for browser in chromium chromium-browser google-chrome google-chrome-stable; do
  if command -v "$browser" >/dev/null; then
    echo "$browser is installed"
    exit 0
  fi
done
if ! command -v apt-get >/dev/null; then
  echo "No apt-get here: install Chromium by hand; tests of pages skip without it" >&2
  exit 0
fi
if [ "$(id -u)" -eq 0 ]; then
  as_root=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
  as_root=(sudo -n)
else
  echo "Not root: run as root 'apt-get install chromium'; tests of pages skip without it" >&2
  exit 0
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core
