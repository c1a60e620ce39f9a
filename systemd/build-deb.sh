#!/bin/sh
# Builds dist/koord-host_VERSION_ARCH.deb from the working tree: build-deb.sh DIRECTORY-TO-WORK-IN
# WHEELS as in setup.sh. Needs no root.
set -eu

SOURCE=$(cd "$(dirname "$0")/.." && pwd)
WORK=$1
ROOT=$WORK/root
VERSION=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$SOURCE/pyproject.toml")
ARCH=$(dpkg --print-architecture)
export PYTHON=/usr/bin/python3 # the one that the package depends on

rm -rf "$ROOT"
mkdir -p "$ROOT/DEBIAN" "$SOURCE/dist"
umask 022
PREFIX=/usr DESTDIR=$ROOT "$SOURCE/systemd/setup.sh" install

# Compiled parts of the packages fit one minor version of Python.
MINOR=$($PYTHON -c 'import sys; print(sys.version_info[1])')
sed -e "s/@VERSION@/$VERSION/; s/@ARCH@/$ARCH/; s/@SIZE@/$(du -sk "$ROOT" | cut -f1)/" \
    -e "s/@PYTHON@/python3 (>= 3.$MINOR), python3 (<< 3.$((MINOR + 1)))/" \
    "$SOURCE/systemd/debian/control" >"$ROOT/DEBIAN/control"
for script in postinst prerm postrm; do
    install -m 0755 "$SOURCE/systemd/debian/$script" "$ROOT/DEBIAN/$script"
done
printf '%s\n' /etc/koordlet/koordlet.yaml /etc/koordlet/nodeslo.yaml \
    /etc/koord-runtimeproxy/config.yaml >"$ROOT/DEBIAN/conffiles"
(cd "$ROOT" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$ROOT/DEBIAN/md5sums"

DEB=$SOURCE/dist/koord-host_${VERSION}_$ARCH.deb
dpkg-deb --root-owner-group -Zzstd -z6 --build "$ROOT" "$DEB" >/dev/null
rm -rf "$ROOT"
echo "$DEB"
