#!/bin/sh
# tests/tools/promtool.sh - promtool of the Debian package prometheus into var/bin, without
# the service that the package would start. Nothing when it is there; fails without apt.
set -eu
to=var/bin/promtool
command -v promtool >/dev/null 2>&1 && exit 0
[ -x "$to" ] && exit 0
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
(cd "$dir" && { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; }) >/dev/null 2>&1
dpkg-deb --fsys-tarfile "$dir"/prometheus_*.deb | tar -x -C "$dir" ./usr/bin/promtool
mkdir -p var/bin
mv "$dir/usr/bin/promtool" "$to"
