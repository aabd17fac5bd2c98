#!/usr/bin/env bash
# The real services that `make services` tests against. Safe to call again.
set -euo pipefail
. "$(dirname "$0")/packages.sh"

if ! command -v etcd >/dev/null; then
    if may_install; then
        install_package etcd-server
    else
        echo "services: etcd is missing; install it, e.g. etcd-server" >&2
        exit 1
    fi
fi
