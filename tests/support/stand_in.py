"""Replaces `python` for forked scripts and their launchers: `[-u] (SCRIPT | -m MODULE) ARGUMENT...`.

The program runs in a process that `fork_server` forks, with this one's environment, folder and streams. Signals are
handed on, and this process ends as that one does. Imports little: it takes 20 ms.
"""

import json
import os
import signal
import socket
import sys

command = sys.argv[1:]
while command[0] in ("-u", "-m"):
    command.pop(0)
server = socket.socket(socket.AF_UNIX)
server.connect("\0" + os.environ["TESTS_FORK_SERVER"])
socket.send_fds(server, [b"p"], [0, 1, 2])
server.sendall(json.dumps({"command": command, "cwd": os.getcwd(), "env": dict(os.environ)}).encode() + b"\n")
answers = server.makefile()
program = int(answers.readline())
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
    signal.signal(number, lambda number, _: os.kill(program, number))
code = int(answers.readline())
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
