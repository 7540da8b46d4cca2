#!/usr/bin/env python3
"""`make layers`: the floors hold. Run from the project root.

 - a file includes its own floor or lower; siblings on floor 1 do not see each other;
   ctl/ sees base/ only
 - a foreign header stands in the files that own it (sqlite3.h in state/store.c, ...)
 - sleeps and timed waits stand in base/ only
 - only mains, API handlers, ctl and worker loops log
"""
import re
import subprocess
import sys

FLOORS = [("base/", 0), ("kernels/", 1), ("topo/", 1), ("state/", 1), ("daemon/serve/", 2),
          ("daemon/ctrl/", 3), ("daemon/api/", 4), ("daemon/", 5), ("ctl/", 5)]
OWNERS = {"sqlite3.h": r"state/store\.c", "readline/readline.h": r"ctl/line\.c",
          "readline/history.h": r"ctl/line\.c", "microhttpd.h": r"daemon/api/",
          "curl/curl.h": r"ctl/wire(_many\.c|_int\.h)", "zlib.h": r"ctl/tar\.c", "pcre2.h": r"daemon/serve/pretok\.c",
          "expat.h": r"topo/xml\.c", "hwloc.h": r"topo/probe_pci\.c",
          "immintrin.h": r"(kernels/.*_avx(2|512)\.[ch]|base/team\.c)",
          "nettle/sha2.h": r"base/sha256\.c",
          "yaml.h": r"daemon/ctrl/conf_tree\.c",
          "systemd/sd-daemon.h": r"base/systemd\.c", "systemd/sd-journal.h": r"base/systemd\.c",
          "gnutls/gnutls.h": r"daemon/api/tls\.c",
          "cairo/cairo.h": r"ctl/plot\.c",
          "jansson.h": r"(base/json\.h|base/json\.c)"}
SLEEPS = re.compile(r"(?<![>.\w])(usleep|nanosleep|clock_nanosleep|sleep|pthread_cond_timedwait|"
                    r"sem_timedwait|epoll_wait|ppoll|poll|select|sigtimedwait|clock_sleep_us)\s*\(")
SLEEP_OK = re.compile(r"(base/|ctl/|tests/)")
LOGS = re.compile(r"\blog_(error|warn|info|debug|line|unkept|about|pass)\s*\(")
LOG_OK = re.compile(r"(base/log|daemon/(main|app|app_rack|service|engine_main)\.c|daemon/api/|daemon/ctrl/|"
                    r"daemon/serve/engine\.c|ctl/)")


def floor(path):
    for prefix, n in FLOORS:
        if path.startswith(prefix):
            return n, prefix
    return None, None


def without_comments(text):
    return re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.S)


def check_include(path, n, inc, faults):
    mine, prefix = floor(path)
    theirs, other = floor(inc)
    if theirs is not None:
        if prefix == "ctl/" and other not in ("ctl/", "base/"):
            faults.append(f"{path}:{n}: ctl/ links base/ only, includes {inc}")
        elif theirs > mine or theirs == mine == 1 and other != prefix:
            faults.append(f"{path}:{n}: floor {mine} includes {inc} of floor {theirs}")
    if inc.startswith("netlink/") and not re.match(r"topo/(probe_net|net_\w+)\.c", path):
        faults.append(f"{path}:{n}: libnl belongs to topo/probe_net.c and topo/net_*.c")
    if inc in OWNERS and not re.match(OWNERS[inc], path):
        faults.append(f"{path}:{n}: {inc} belongs to {OWNERS[inc]}")


def check(path, faults):
    if floor(path)[0] is None:
        return
    text = without_comments(open(path, encoding="utf-8").read())
    for n, line in enumerate(text.split("\n"), 1):
        m = re.match(r'\s*#\s*include\s+["<]([^">]+)[">]', line)
        code = re.sub(r'"(\\.|[^"\\])*"', '""', line)
        if m:
            check_include(path, n, m.group(1), faults)
        elif SLEEPS.search(code) and not SLEEP_OK.match(path):
            faults.append(f"{path}:{n}: sleep or timed wait outside base/: {line.strip()}")
        elif LOGS.search(code) and not LOG_OK.match(path):
            faults.append(f"{path}:{n}: library code logs: {line.strip()}")


def main():
    files = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard",
                            "*.c", "*.h", "*.def"],
                           capture_output=True, text=True, check=True).stdout.split()
    faults = []
    for f in files:
        check(f, faults)
    print("\n".join(faults + [f"layers: {len(files)} files, {len(faults)} faults"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
