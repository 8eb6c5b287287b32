"""Real Chromium, driven by the pipes of --remote-debugging-pipe: JSON that ends with NUL, on its descriptors 3 and 4."""

import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATH = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe"]
START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execvp(sys.argv[3], sys.argv[3:])"
)
WAITS = 120  # s; a busy machine may take ten times as long
KEYS = {"Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9}
SHIFT = 8


class Browser:
    """One window. `events` has what the page did: requests, its console, exceptions."""

    def __init__(self, folder: Path):
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for pipe in (os.pipe(), os.pipe()) for end in pipe]
        reads, self.writes, self.reads, writes = ends
        command = [sys.executable, "-c", START, str(reads), str(writes), PATH, *FLAGS, f"--user-data-dir={folder}"]
        log = open(folder.with_suffix(".log"), "wb")  # noqa: SIM115 - the process owns it
        self.process = subprocess.Popen(
            command, pass_fds=(reads, writes), start_new_session=True, stdout=log, stderr=log
        )
        for end in (reads, writes, log):
            os.close(end) if isinstance(end, int) else end.close()
        self.log, self.events, self.session, self.number, self.left = Path(log.name), [], None, 0, b""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.reads)
        os.close(self.writes)

    def call(self, method: str, **parameters) -> dict:
        """The result of a command. Raises a `RuntimeError` if Chromium refuses it, ends or says nothing for long."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.writes, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.left:
                content = b""
                if select.select([self.reads], [], [], WAITS)[0]:
                    content = os.read(self.reads, 1 << 20)
                if not content:
                    raise RuntimeError(f"Chromium has ended or hangs: {self.log.read_text(errors='replace')[-2000:]}")
                self.left += content
            line, _, self.left = self.left.partition(b"\0")
            reply = json.loads(line)
            if reply.get("id") == self.number:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']['message']}")
                return reply["result"]
            self.events.append(reply)

    def run(self, script: str):
        """The value of an expression in the page, awaited if it is a promise."""
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
        """Loads a page anew, and with it what it says."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def press(self, key: str, modifiers: int = 0) -> None:
        known = {"key": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": modifiers}
        known |= {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, **known)

    def mouse(self, kind: str, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)


@contextmanager
def opened(folder: Path) -> Iterator[Browser]:
    """A browser with its profile in a folder; it ends with all of its processes."""
    browser = Browser(folder)
    try:
        yield browser
    finally:
        browser.close()
