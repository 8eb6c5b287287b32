"""A `python3` for shell scripts under test: `with stand_in(folder, answer) as python: ...` and PYTHON=python.

Each call is answered by a function of the test's process, so that no command imports PyTorch anew. What is read from
the standard input, as in `python3 - ... <<EOF`, runs in a real interpreter.
"""

import contextlib
import json
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

Answer = Callable[[list[str]], tuple[int, str]]  # from the arguments: exit code and output

CLIENT = """#!{python} -ISs
import json, os, socket, sys
if sys.argv[1] == "-":
    os.execv("{python}", ["{python}", "-I", *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect("{socket}")
    server.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
    code, output = json.loads(server.makefile().readline())
print(output, end="")
sys.exit(code)
"""


@contextlib.contextmanager
def stand_in(folder: Path, answer: Answer) -> Iterator[Path]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            self.wfile.write(json.dumps(answer(json.loads(self.rfile.readline()))).encode() + b"\n")

    address, python = folder / "socket", folder / "python3"
    python.write_text(CLIENT.format(python=sys.executable, socket=address))
    python.chmod(0o755)
    with socketserver.ThreadingUnixStreamServer(str(address), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield python
        finally:
            server.shutdown()
            thread.join()
