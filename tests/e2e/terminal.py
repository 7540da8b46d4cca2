"""llmctl in a real terminal: pexpect holds the pty, pyte says what a person would see."""
import os
import re
import time

import pexpect
import pyte

from rack import BIN, SLOW

CTL = os.path.join(BIN, "llmctl")


class Terminal:
    def __init__(self, *args, home, columns=100, rows=30, env=None, program=CTL):
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.child = pexpect.spawn(
            program, list(args), dimensions=(rows, columns), timeout=20 * SLOW,
            env={**os.environ, "TERM": "xterm-256color", "HOME": str(home), **(env or {})})
        self.child.delaybeforesend = None

    def size(self, columns, rows=30):
        self.screen.resize(rows, columns)
        self.child.setwinsize(rows, columns)

    def keys(self, text):
        self.child.send(text)

    def read(self, seconds=0.2):
        """What comes within that time goes to the screen; False at the end of it all."""
        try:
            data = self.child.read_nonblocking(65536, seconds)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += data
        self.stream.feed(data)
        return True

    def lines(self):
        """The screen without its empty end."""
        lines = [line.rstrip() for line in self.screen.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def text(self):
        return "\n".join(self.lines())

    def shows(self, what, seconds=20):
        """Until the screen matches the regular expression; the match."""
        end = time.monotonic() + seconds * SLOW
        while not (m := re.search(what, self.text(), re.M)):
            assert time.monotonic() < end, f"{what!r} is not on the screen:\n{self.text()}"
            self.read()
        return m

    def ends(self):
        """Exit code, or minus the signal."""
        end = time.monotonic() + 20 * SLOW
        while self.read():
            assert time.monotonic() < end, f"does not end:\n{self.text()}"
        self.child.wait()
        self.child.close()
        return self.child.exitstatus if self.child.signalstatus is None \
            else -self.child.signalstatus

    def stop(self):
        self.child.close(force=True)
