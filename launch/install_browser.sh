#!/usr/bin/env bash
# Chromium for the tests that click through HTML pages: from the distribution's packages, where there is none and this
# is root. Elsewhere nothing happens, and those tests say what to install. CHROMIUM=/path/to/it names another.
set -euo pipefail

for name in ${CHROMIUM:-chromium chromium-browser google-chrome google-chrome-stable chrome}; do
    if command -v "$name" >/dev/null; then exit 0; fi
done
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then exit 0; fi

echo "Installing Chromium for the tests of HTML pages: half a minute, once"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Another apt-get may be at work. Fonts: without any, pages would be empty.
install=(apt-get -o DPkg::Lock::Timeout=300 install --yes --no-install-recommends chromium fonts-dejavu-core)
if ! { apt-get update && DEBIAN_FRONTEND=noninteractive "${install[@]}"; } >"$log" 2>&1; then
    tail -n 5 "$log" >&2
    echo "Chromium could not be installed; the tests that need it will fail, and all others run" >&2
fi
