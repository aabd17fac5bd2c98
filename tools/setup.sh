#!/usr/bin/env bash
# Makes .venv/ with everything that the other targets need. Safe to call again.
set -euo pipefail
python=${PYTHON:-python3}
venv=${VENV:-.venv}

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "setup: Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11" >&2
    exit 1
fi

if [ ! -w . ]; then
    echo "setup: $PWD belongs to another user, who has not run \`make setup\` in it; clone it yourself" >&2
    exit 1
fi

. "$(dirname "$0")/packages.sh"

if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    if may_install; then
        install_package python3-venv
    else
        echo "setup: Python's venv module is missing; install it, e.g. python3-venv" >&2
        exit 1
    fi
fi

java_major() {
    local line
    line=$( { java -version 2>&1 || true; } | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    echo "${line:-0}"
}

if [ "$(java_major)" -lt 17 ]; then
    if may_install; then
        install_package openjdk-17-jre-headless
    else
        echo "setup: Java 17 or newer is needed for Spark; install a JRE, e.g. openjdk-17-jre-headless" >&2
        exit 1
    fi
fi

# Two targets started side by side in a new clone must not install into each other.
mkdir -p "$venv"
if command -v flock >/dev/null; then
    exec 9>"$venv/.lock"
    flock 9
fi
# Also when an earlier call was interrupted before pip was there.
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv "$venv"
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --require-hashes -r requirements/dev.txt
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
