"""Real Chromium, driven by --remote-debugging-pipe: JSON that ends with NUL, on its descriptors 3 and 4."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PATH = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"]
# the two ends may be 3 and 4 themselves, so they are copied away first
START = "import fcntl, os, sys; ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD_CLOEXEC, 10) for end in sys.argv[1:3]]; "
START += "os.dup2(ends[0], 3); os.dup2(ends[1], 4); os.execv(sys.argv[3], sys.argv[3:])"
WAITS = 120  # s; a busy machine may take ten times as long
KEYS, SHIFT = {"Tab": 9, "Enter": 13, "ArrowRight": 39}, 8


class Browser:
    """One window, with its profile in a folder. `events` has replies, and what pages did: requests, errors, console."""

    def __init__(self, folder: Path):
        (reads, self._writes), (self._reads, writes) = os.pipe(), os.pipe()
        self._log = folder.with_suffix(".log")
        command = [sys.executable, "-c", START, str(reads), str(writes), PATH, *FLAGS, f"--user-data-dir={folder}"]
        with self._log.open("wb") as log:
            settings = {"pass_fds": (reads, writes), "stdout": log, "stderr": log, "start_new_session": True}
            self._process = subprocess.Popen(command, **settings)
        os.close(reads)
        os.close(writes)
        self.events, self._session, self._number, self._left = [], {}, 0, b""

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._reads)
        os.close(self._writes)

    def call(self, method: str, **parameters) -> dict:
        """The result of a command. Raises RuntimeError: Chromium has ended, or says nothing for long."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        reply = {}
        while reply.get("id") != self._number:
            while b"\0" not in self._left:
                content = os.read(self._reads, 1 << 20) if select.select([self._reads], [], [], WAITS)[0] else b""
                if not content:
                    raise RuntimeError(f"Chromium has ended or hangs: {self._log.read_text(errors='replace')[-2000:]}")
                self._left += content
            line, _, self._left = self._left.partition(b"\0")
            self.events.append(reply := json.loads(line))
        assert "error" not in reply, f"{method}: {reply}"
        return reply["result"]

    def run(self, script: str):
        """The value of an expression in the page, or what its promise brings."""
        reply = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in reply, f"{script}: {reply['exceptionDetails']}"
        return reply["result"].get("value")

    def wait(self, script: str) -> None:
        """Until an expression is true in the page."""
        until = time.monotonic() + WAITS
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < until, f"never true: {script}; {self.run('document.body.innerText')}"
            time.sleep(0.02)

    def open(self, address: str) -> None:
        """Loads a page anew."""
        if not self._session:
            target = self.call("Target.createTarget", url="about:blank")
            self._session = self.call("Target.attachToTarget", **target, flatten=True)
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        for url in ("about:blank", address):
            self.call("Page.navigate", url=url)
        self.wait(f"document.readyState === 'complete' && location.href === {address!r}")

    def press(self, key: str, modifiers: int = 0) -> None:
        known = {"key": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": modifiers}
        for kind, text in (("keyDown", "\r" if key == "Enter" else ""), ("keyUp", "")):
            self.call("Input.dispatchKeyEvent", type=kind, text=text, **known)

    def mouse(self, kind: str, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)
