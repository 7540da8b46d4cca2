#!/usr/bin/env bash
# etc/install.sh DESTDIR PREFIX BUILD - puts what was built in BUILD where it belongs. A
# configuration that is there already stays.
set -eu
dest=$1 prefix=$2 build=$3
put() { install -D -m 644 "$@"; }
install -D -m 755 -t "$dest$prefix/bin" "$build"/llmrackd "$build"/llmrack-engine "$build"/llmctl
put -t "$dest$prefix/share/llmrack/models" etc/models/*.json
put -t "$dest$prefix/share/llmrack" etc/prometheus-rules.yaml
"$build"/llmctl completion bash |
    put /dev/stdin "$dest$prefix/share/bash-completion/completions/llmctl"
for page in etc/man/*.in; do
    page=$(basename "$page" .in)
    put -t "$dest$prefix/share/man/man${page##*.}" "$build/man/$page"
done
test -e "$dest/etc/llmrackd.yaml" || put etc/llmrackd.yaml "$dest/etc/llmrackd.yaml"
put -t "$dest$prefix/lib/systemd/system" systemd/llmrackd.service systemd/llmrackd.socket
sed -i "s#@BINDIR@#$prefix/bin#" "$dest$prefix/lib/systemd/system/llmrackd.service"
put systemd/llmrack.sysusers "$dest$prefix/lib/sysusers.d/llmrack.conf"
put systemd/llmrack.tmpfiles "$dest$prefix/lib/tmpfiles.d/llmrack.conf"
