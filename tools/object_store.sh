#!/usr/bin/env bash
# The object store of `make services` and `make chaos`. Safe to call again.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)

# moto's server is the object store. An environment of its own: what it needs does not fit ours.
store=$here/.cache/object-store
if [ ! -e "$store/.installed" ] || [ "$here/requirements/services.txt" -nt "$store/.installed" ]; then
    "$here/.venv/bin/python" -m venv "$store"
    "$store/bin/python" -m pip install -qq --disable-pip-version-check --require-hashes \
        -r "$here/requirements/services.txt"
    touch "$store/.installed"
fi
