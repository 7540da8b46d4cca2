#!/bin/sh
# etc/deb/build.sh - a Debian package of an installed tree: ROOT VERSION OUT.
#
# The libraries it depends on are those that the programs name, as this machine packages
# them. Nothing but dpkg is needed.
set -eu
root=$1 version=$2 out=$3
here=$(dirname "$0")

libraries() {
    for program in "$root"/usr/bin/*; do
        objdump -p "$program" | awk '/NEEDED/ { print $2 }'
    done | sort -u
}

# libx.so.1 -> its package, at least the upstream version that we built with
packages() {
    libraries | while read -r lib; do
        path=$(ldconfig -p | awk -v lib="$lib" '$1 == lib { print $NF; exit }')
        # with or without /usr, as the package was built before or after the merge
        package=$(dpkg -S "/usr${path#/usr}" "${path#/usr}" 2>/dev/null | head -1)
        package=${package%%: *}
        dpkg-query -W -f '${Package} (>= ${source:Upstream-Version})\n' "$package"
    done | sort -u | sed 's/$/,/' | tr '\n' ' ' | sed 's/, $//'
}

mkdir -p "$root/DEBIAN"
find "$root/usr/share/man" -type f -exec gzip -9n {} +
strip --strip-unneeded "$root"/usr/bin/*
install -D -m 644 LICENSE "$root/usr/share/doc/llmrack/copyright"
sed -e "s/@VERSION@/$version/" -e "s/@ARCH@/$(dpkg --print-architecture)/" \
    -e "s/@LIBRARIES@/$(packages)/" \
    -e "s/@SIZE@/$(du -sk --exclude=DEBIAN "$root" | cut -f1)/" \
    "$here/control.in" > "$root/DEBIAN/control"
echo /etc/llmrackd.yaml > "$root/DEBIAN/conffiles"
install -m 755 -t "$root/DEBIAN" "$here/postinst" "$here/prerm" "$here/postrm"
dpkg-deb --root-owner-group -Zxz --build "$root" "$out" > /dev/null
echo "$out"
