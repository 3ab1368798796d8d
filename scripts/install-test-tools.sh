#!/usr/bin/env bash
# Installs what some tests need from the distribution's packages: Chromium for tests of pages, PostgreSQL for tests of a
# team's store. If that is not allowed or not possible, those tests are skipped with a message; with CI=true they fail.
set -euo pipefail

has() { for name in "$@"; do command -v "$name" >/dev/null && return; done; return 1; }

packages=()
if has chromium chromium-browser google-chrome google-chrome-stable; then
  echo "A Chromium is installed"
else
  packages+=(chromium fonts-dejavu-core)
fi
if has initdb || compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null; then
  echo "PostgreSQL is installed"
else
  packages+=(postgresql)
fi
[ ${#packages[@]} -gt 0 ] || exit 0

if ! has apt-get; then
  echo "No apt-get here: install by hand: ${packages[*]}; tests that need them skip" >&2
  exit 0
fi
if [ "$(id -u)" -eq 0 ]; then
  as_root=()
elif has sudo && sudo -n true 2>/dev/null; then
  as_root=(sudo -n)
else
  echo "Not root: run as root 'apt-get install ${packages[*]}'; tests that need them skip" >&2
  exit 0
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${packages[@]}"
