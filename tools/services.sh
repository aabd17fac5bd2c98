#!/usr/bin/env bash
# The real services that `make services` tests against. Safe to call again.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
. "$here/tools/packages.sh"

bash "$here/tools/object_store.sh"

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
