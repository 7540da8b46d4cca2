"""The Debian package in a chroot of its own: installed, run, upgraded with its state kept,
removed, purged. Minutes long, so `make check-long` asks for it (LLMRACK_LONG=1)."""
import json
import os
import re
import shutil
import signal
import subprocess

import pytest

from rack import BIN, SLOW, UnixConnection, wait_for

if not os.environ.get("LLMRACK_LONG"):
    pytest.skip("long: make check-long runs it", allow_module_level=True)
if not shutil.which("mmdebstrap") or os.geteuid() != 0 or BIN != "build":
    pytest.skip("needs mmdebstrap, root and the release build", allow_module_level=True)

SOCKET = "/var/lib/llmrack/test.sock"


def build(version):
    p = subprocess.run(["make", "-s", "deb", f"DEB_VERSION={version}"], check=True,
                       capture_output=True, text=True, timeout=600,
                       env={k: v for k, v in os.environ.items() if k != "MAKELEVEL"})
    return p.stdout.strip().split("\n")[-1]


def suite():
    with open("/etc/os-release") as f:
        return re.search(r"^VERSION_CODENAME=(\w+)", f.read(), re.M).group(1)


class Chroot:
    def __init__(self, root):
        self.root = str(root)

    def command(self, *words):
        return ["unshare", "--mount", "sh", "-c",
                'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"', self.root, *words]

    def run(self, *words, check=True):
        p = subprocess.run(self.command(*words), capture_output=True, text=True,
                           timeout=300, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                                             "DEBIAN_FRONTEND": "noninteractive"})
        assert not check or p.returncode == 0, p.stdout + p.stderr
        return p.stdout

    def install(self, deb):
        shutil.copy(deb, self.path("/tmp/llmrack.deb"))
        self.run("dpkg", "-i", "/tmp/llmrack.deb")

    def path(self, p):
        return self.root + p

    def exists(self, p):
        return os.path.lexists(self.path(p))


class Daemon:
    """The installed llmrackd as its user, with the options of the unit."""

    def __init__(self, chroot):
        self.path = chroot.path(SOCKET)
        self.p = subprocess.Popen(
            chroot.command("setpriv", "--reuid=llmrack", "--regid=llmrack", "--clear-groups",
                           "/usr/bin/llmrackd", "--config", "/etc/llmrackd.yaml",
                           "--state-dir", "/var/lib/llmrack", "--socket", SOCKET,
                           "--listen", ""), stderr=subprocess.PIPE, text=True)

        def serves():
            assert self.p.poll() is None, self.p.stderr.read()
            return os.path.exists(self.path)
        wait_for(serves, 30)

    def ask(self, method, path, body=None):
        c = UnixConnection(self.path)
        c.request(method, path, None if body is None else json.dumps(body))
        r = c.getresponse()
        status, text = r.status, r.read()
        c.close()
        assert status < 300, text
        return json.loads(text)

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        assert self.p.wait(60 * SLOW) == 0, self.p.stderr.read()
        self.p.stderr.close()


@pytest.fixture(scope="module")
def chroot(tmp_path_factory):
    root = tmp_path_factory.mktemp("deb") / "root"
    deb = build("0.1.0")
    depends = subprocess.run(["dpkg-deb", "-f", deb, "Depends"], check=True,
                             capture_output=True, text=True).stdout
    # the last of alternatives: not a whole systemd
    names = [re.split(r"\s|\(", d.split("|")[-1].strip())[0] for d in depends.split(",")]
    p = subprocess.run(["mmdebstrap", "--quiet", "--mode=root", "--variant=apt",
                        "--include=" + ",".join(names), suite(), str(root)],
                       capture_output=True, text=True, timeout=1500)
    if p.returncode != 0:
        pytest.skip("no chroot could be made: " + p.stderr.strip().split("\n")[-1])
    yield Chroot(root)
    shutil.rmtree(root, ignore_errors=True)


def test_install_upgrade_remove_purge(chroot):
    chroot.install(build("0.1.0"))
    assert re.search(r"^llmrack-admin:", open(chroot.path("/etc/group")).read(), re.M)
    assert chroot.run("stat", "-c", "%U:%G %a", "/var/lib/llmrack").strip() == \
        "llmrack:llmrack 750"
    assert "llmctl" in chroot.run("/usr/bin/llmctl", "--version")
    assert "llmrack-engine" in chroot.run("/usr/bin/llmrack-engine", "--version")

    d = Daemon(chroot)
    assert d.ask("GET", "/api/v1/config")["revision"] == 1
    assert chroot.run("/usr/bin/llmctl", "--socket", SOCKET, "show", "version")
    key = d.ask("POST", "/api/v1/keys", {"name": "kept", "scopes": "infer"})["id"]
    rows = d.ask("GET", "/api/v1/journal")["journal"]
    d.stop()
    with open(chroot.path("/etc/llmrackd.yaml"), "a") as f:
        f.write("# of this site\n")

    chroot.install(build("0.1.0+2"))
    assert "0.1.0+2" in chroot.run("dpkg-query", "-W", "llmrack")
    assert open(chroot.path("/etc/llmrackd.yaml")).read().endswith("# of this site\n")
    d = Daemon(chroot)
    assert key in json.dumps(d.ask("GET", "/api/v1/keys"))
    now = d.ask("GET", "/api/v1/journal")["journal"]
    assert [r for r in rows if r not in now] == []
    d.stop()

    chroot.run("dpkg", "-r", "llmrack")
    assert not chroot.exists("/usr/bin/llmrackd")
    assert chroot.exists("/etc/llmrackd.yaml")
    assert chroot.exists("/var/lib/llmrack/state.db")
    chroot.run("dpkg", "-P", "llmrack")
    left = chroot.run("find", "/", "-xdev", "-name", "*llmrack*", "-not", "-path", "/proc/*",
                      "-not", "-path", "/tmp/*").split()
    assert left == []
