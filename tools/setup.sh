#!/usr/bin/env bash
# Makes .venv/ with everything that the other targets need. Safe to call again.
set -euo pipefail
python=${PYTHON:-python3}
venv=${VENV:-.venv}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "setup: Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11" >&2
    exit 1
fi

java_major() {
    local line
    line=$( { java -version 2>&1 || true; } | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    echo "${line:-0}"
}

if [ "$(java_major)" -lt 17 ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openjdk-17-jre-headless
    else
        echo "setup: Java 17 or newer is needed for Spark; install a JRE, e.g. openjdk-17-jre-headless" >&2
        exit 1
    fi
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
