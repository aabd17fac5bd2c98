#!/usr/bin/env bash
# What the tests in a browser need: Debian's chromium, playwright's driver, axe-core. Safe to call again.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
axe=4.14.0

if ! command -v chromium >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null
    else
        echo "browser: chromium is missing; install it, e.g. apt-get install chromium" >&2
        exit 1
    fi
fi
if ! command -v npm >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq npm >/dev/null
    else
        echo "browser: npm is missing; it fetches axe-core for the tests" >&2
        exit 1
    fi
fi
"$venv/bin/python" -c 'import playwright' 2>/dev/null ||
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check --require-hashes -r requirements/browser.txt
if [ "$(cat .cache/browser/axe-version 2>/dev/null)" != "$axe" ]; then
    mkdir -p .cache/browser
    npm install --silent --no-audit --no-fund --no-save --prefix .cache/browser "axe-core@$axe" >/dev/null 2>&1
    echo "$axe" >.cache/browser/axe-version
fi
