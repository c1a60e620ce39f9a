#!/bin/sh
# Puts koord-host below a prefix, or takes it away again: setup.sh install|uninstall
#
# PREFIX   where to (default /usr/local); units, and links to the programs, go where systemd and
#          the shell look
# DESTDIR  a directory to stage into; nothing outside of it is touched then, and no service is
# PYTHON   the interpreter that will run it (3.11 or newer); one of the system, since the service
#          sees no home directories
# WHEELS   a directory of wheels; without it they come from the package index that pip knows
# PURGE    1: uninstall takes the configuration in /etc away, too
set -eu

PREFIX=${PREFIX:-/usr/local}
DESTDIR=${DESTDIR:-}
WHEELS=${WHEELS:-}
PURGE=${PURGE:-}
SOURCE=$(cd "$(dirname "$0")/.." && pwd)
APP=$PREFIX/lib/koord-host
DOC=$PREFIX/share/doc/koord-host
UNITS="koordlet.service koordlet-rollback.service koordlet-rollback.timer koord.slice
    koord-runtimeproxy.service koord-runtimeproxy.socket"
case $PREFIX in
    /usr | /usr/local) UNITDIR=$PREFIX/lib/systemd/system TMPFILESDIR=$PREFIX/lib/tmpfiles.d ;;
    *) UNITDIR=/etc/systemd/system TMPFILESDIR=/etc/tmpfiles.d ;;
esac

fail() {
    echo "setup: $1" >&2
    exit 1
}

has_systemd() {
    test -z "$DESTDIR" && test -d /run/systemd/system
}

find_python() {
    for python in ${PYTHON:-} /usr/bin/python3 /usr/local/bin/python3; do
        if "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' \
            2>/dev/null; then
            echo "$python"
            return
        fi
    done
    fail "no Python >= 3.11 with the venv module in /usr; remedy: apt-get install -y python3-venv,
or PYTHON=/path/to/python3"
}

# Everything that runs, in one directory of its own: an interpreter's link and the packages.
stage_app() {
    staged=$DESTDIR$APP.new
    rm -rf "$staged"
    mkdir -p "$DESTDIR$PREFIX/lib"
    "$1" -m venv --symlinks "$staged"
    pip="$staged/bin/python -m pip --quiet --disable-pip-version-check"
    offline=${WHEELS:+--no-index --find-links=$WHEELS}
    built=$(mktemp -d)
    trap 'rm -rf "$built"' EXIT
    # Elsewhere, so that a build leaves no files of root's in somebody's clone.
    (cd "$SOURCE" && tar --exclude='./.*' --exclude=__pycache__ --exclude=./tests \
        --exclude=./vagrant --exclude=./build --exclude=./dist -cf - .) | tar -xf - -C "$built"
    # shellcheck disable=SC2086 # words on purpose
    $pip install --no-compile -c "$SOURCE/constraints.txt" $offline setuptools
    # shellcheck disable=SC2086
    $pip install --no-compile -c "$SOURCE/constraints.txt" $offline --no-build-isolation "$built"
    # What only the installation needed.
    site=$(echo "$staged"/lib/python*/site-packages)
    rm -rf "$site"/pip "$site"/pip-* "$site"/setuptools "$site"/setuptools-* "$site"/pkg_resources \
        "$site"/_distutils_hack "$site"/distutils-precedence.pth "$staged/include"
    for program in "$staged"/bin/*; do
        case ${program##*/} in
            python*) ;;
            koord*) sed -i "1s|^#!.*|#!$APP/bin/python3 -I|" "$program" ;;
            *) rm "$program" ;;
        esac
    done
    rm -f "$site"/koord_host-*/direct_url.json
    sed -i '/^command *=/d' "$staged/pyvenv.cfg"
    "$staged/bin/python" -m compileall -q -j 0 -s "$staged" -p "$APP" "$staged/lib"
    # A daemon that runs goes on with what it has loaded until it is started again.
    rm -rf "$DESTDIR$APP.old"
    test ! -e "$DESTDIR$APP" || mv "$DESTDIR$APP" "$DESTDIR$APP.old"
    mv "$staged" "$DESTDIR$APP"
    rm -rf "$DESTDIR$APP.old"
}

put() {
    install -D -m 0644 "$SOURCE/$1" "$DESTDIR$2"
}

put_once() {
    test -e "$DESTDIR$2" || put "$1" "$2"
}

stage_rest() {
    mkdir -p "$DESTDIR$PREFIX/bin" "$DESTDIR$UNITDIR"
    for program in "$DESTDIR$APP"/bin/koord*; do
        ln -sfn "../lib/koord-host/bin/${program##*/}" "$DESTDIR$PREFIX/bin/${program##*/}"
    done
    for unit in $UNITS; do
        sed "s|/usr/bin/koord|$PREFIX/bin/koord|; s|/usr/share/doc|$PREFIX/share/doc|" \
            "$SOURCE/systemd/$unit" >"$DESTDIR$UNITDIR/$unit"
        chmod 0644 "$DESTDIR$UNITDIR/$unit"
    done
    put systemd/tmpfiles.d/koord-host.conf "$TMPFILESDIR/koord-host.conf"
    for doc in README.md CHANGELOG.md LICENSE docs/operations.md docs/cli.md docs/metrics.md \
        docs/runtimeproxy.md; do
        put "$doc" "$DOC/${doc##*/}"
    done
    for example in "$SOURCE"/systemd/examples/*; do
        put "systemd/examples/${example##*/}" "$DOC/examples/${example##*/}"
    done
    put_once systemd/etc/koordlet.yaml /etc/koordlet/koordlet.yaml
    put_once systemd/etc/nodeslo.yaml /etc/koordlet/nodeslo.yaml
    mkdir -p "$DESTDIR/etc/koordlet/hostapps.d"
    put_once systemd/etc/runtimeproxy.yaml /etc/koord-runtimeproxy/config.yaml
}

do_install() {
    stage_app "$(find_python)"
    stage_rest
    test -z "$DESTDIR" || return 0
    if ! has_systemd; then
        echo "setup: installed; systemd does not run here, so start it by: koordlet run"
        return 0
    fi
    systemctl daemon-reload
    systemd-tmpfiles --create koord-host.conf
    systemctl try-restart koordlet.service # an upgrade: values in force stay so
    systemctl try-restart koord-runtimeproxy.service # and no call is lost
    systemctl is-active --quiet koordlet.service ||
        echo "setup: installed; start it by: systemctl enable --now koordlet"
}

# Everything is given back before anything is taken away.
undo() {
    ctl=$APP/bin/koordletctl
    if has_systemd; then
        # Without its runtime's socket a kubelet ends, and starts no more.
        ! systemctl is-active --quiet koord-runtimeproxy.socket ||
            fail "kubelet may be pointed at koord-runtimeproxy; remedy: point it back to the runtime
(koord-runtimeproxy check tells how), then:
systemctl disable --now koord-runtimeproxy.socket koord-runtimeproxy.service"
        systemctl disable --now koordlet.service 2>/dev/null || true
        systemctl stop koordlet-rollback.timer 2>/dev/null || true
    fi
    test -x "$ctl" || return 0
    ! "$ctl" status >/dev/null 2>&1 ||
        fail "a koordlet runs in the foreground and may hold values; remedy: stop it first"
    code=0
    "$ctl" rollback || code=$?
    case $code in
        0 | 4) ;;
        *) fail "not everything could be given back (see above), so nothing was taken away" ;;
    esac
}

do_uninstall() {
    test -n "$DESTDIR" || undo
    for link in "$DESTDIR$PREFIX"/bin/koord*; do
        case $(readlink "$link") in ../lib/koord-host/*) rm "$link" ;; esac
    done
    for unit in $UNITS; do rm -f "$DESTDIR$UNITDIR/$unit"; done
    rm -f "$DESTDIR$TMPFILESDIR/koord-host.conf"
    rm -rf "$DESTDIR$APP" "$DESTDIR$APP.new" "$DESTDIR$APP.old" "$DESTDIR$DOC"
    test "$PURGE" != 1 || rm -rf "$DESTDIR/etc/koordlet" "$DESTDIR/etc/koord-runtimeproxy"
    test -z "$DESTDIR" || return 0
    rm -rf /run/koordlet /run/koordlet-locks /dev/shm/koordlet /var/lib/koordlet
    rm -rf /run/koord-runtimeproxy /var/lib/koord-runtimeproxy
    if has_systemd; then
        systemctl daemon-reload
        systemctl reset-failed koordlet.service koordlet-rollback.service 2>/dev/null || true
    fi
    test "$PURGE" = 1 || echo "setup: the configuration in /etc is kept; PURGE=1 takes it away, too"
}

case ${1:-} in
    install) do_install ;;
    uninstall) do_uninstall ;;
    *) fail "install or uninstall?" ;;
esac
