# Sourced: packages of the system, installed where that is allowed (root on Debian or Ubuntu).
may_install() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null
}

# RUNLEVEL=1: a server that is installed here is not started; the tests start their own.
install_package() {
    apt-get update -qq && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$1"
}
