"""Reads documents in another process, so that a file on which a library crashes or hangs is left out alone.

The process is started as a module: unlike those of multiprocessing, it needs no main guard in the caller's script. For
each line of its input, a path as JSON, it writes a line: the document, or the string that says why there is none.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from swep_ds.common.errors import InputError
from swep_ds.texts.documents import Document, read_document

LIMIT = 60  # seconds that a document may take


class Died(str):
    """Why a document cannot be read: the process ended, or was too slow."""


def read_documents(paths: Iterable[Path]) -> Iterator[Document | str]:
    """Each document, or why it cannot be read."""
    process = None
    for path in paths:
        if process is None:
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # to import what this process does
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8"}
            command = [sys.executable, "-m", __name__, str(LIMIT)]
            process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
        print(json.dumps(os.fspath(path)), file=process.stdin, flush=True)
        reply = process.stdout.readline()
        if not reply.endswith("\n"):
            process.communicate()
            what = f"ends the process that reads it (exit code {process.returncode})"
            if process.returncode == -signal.SIGALRM:
                what = f"takes more than {LIMIT} seconds"
            process = None
            yield Died(f"{path}: {what}: save it anew, or its text as .txt")
        else:
            yield from_json(json.loads(reply))
    if process:
        process.communicate()


def from_json(value: Any) -> Document | str:
    return value if isinstance(value, str) else Document(*value)


if __name__ == "__main__":
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no reply
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))  # whose signal ends the process
        try:
            reply = read_document(Path(json.loads(line)))
        except InputError as error:
            reply = str(error)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(reply), file=replies, flush=True)
