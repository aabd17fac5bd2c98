#!/usr/bin/env bash
# The real services that `make services` tests against. Safe to call again.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
. "$here/tools/packages.sh"

# moto's server is the object store. An environment of its own: what it needs does not fit ours.
store=$here/.cache/object-store
if [ ! -e "$store/.installed" ] || [ "$here/requirements/services.txt" -nt "$store/.installed" ]; then
    "$here/.venv/bin/python" -m venv "$store"
    "$store/bin/python" -m pip install -qq --disable-pip-version-check --require-hashes \
        -r "$here/requirements/services.txt"
    touch "$store/.installed"
fi

if ! command -v etcd >/dev/null; then
    if may_install; then
        install_package etcd-server
    else
        echo "services: etcd is missing; install it, e.g. etcd-server" >&2
        exit 1
    fi
fi

if ! command -v promtool >/dev/null; then
    if may_install; then
        install_package prometheus
    else
        echo "services: Prometheus is missing; install it, e.g. prometheus" >&2
        exit 1
    fi
fi
