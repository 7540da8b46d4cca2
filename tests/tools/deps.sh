#!/bin/sh
# Install the Debian packages that a target needs, or say which are missing.
# usage: deps.sh PACKAGE ...
# As root with apt: installs what is missing. Otherwise prints one clear list and fails.
set -eu
missing=""
for p in "$@"; do
    if command -v dpkg-query >/dev/null 2>&1; then
        dpkg-query -W -f='${Status}\n' "$p" 2>/dev/null | grep -q '^install ok installed' ||
            missing="$missing $p"
    else
        echo "This machine has no dpkg; install the equivalents of: $*" >&2
        exit 0
    fi
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing:$missing"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    apt-get install -y -qq $missing >/dev/null 2>&1 ||
        { apt-get update -qq && apt-get install -y -qq $missing >/dev/null; }
    exit 0
fi
echo "These packages are missing; install them, then run make again:" >&2
echo "  sudo apt-get install$missing" >&2
exit 1
