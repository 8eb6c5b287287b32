"""Serves one page, and an endpoint: to ask a model about a folder of texts and correct it, or to label questions.

    swep-ds serve mine/model documents                                 # http://127.0.0.1:8000
    swep-ds serve mine/model documents --output corrections.jsonl
    swep-ds serve RUN RUN --label asked.csv --output labels.jsonl      # each question about its own context
    swep-ds serve RUN RUN --label asked.csv --texts documents --output labels.jsonl

Each verdict is a row of the output, which data.train and `swep-ds evaluate` read as it is. Questions are labelled in an
order that says most about the scores of the runs; a label shows what they answered, and moves EM and F1 with their
intervals. Stop and go on at any time. POST /answer is the endpoint, /openapi.json its schema.
Only this machine reaches the page. With --host 0.0.0.0 everybody in the network reads all texts and adds verdicts.
"""

import socket
from pathlib import Path
from threading import Thread

from swep_ds.commands.cli import Parser, at_least, columns_of
from swep_ds.common.errors import InputError, reason
from swep_ds.common.files import user_path
from swep_ds.models.folders import resolve_model
from swep_ds.texts.folder import FolderTexts

LOCAL = ["localhost", "127.0.0.1", "::1"]  # names of this machine


def serve() -> None:
    parser = Parser(description=__doc__)
    text = "a model (a folder or a hub id) and a folder of texts; with --label finished runs"
    parser.add_argument("served", nargs="+", metavar="MODEL FOLDER | RUN", help=text)
    parser.add_argument("--label", metavar="QUESTIONS", help="questions to label, any source of data")
    parser.add_argument("--texts", type=user_path, metavar="FOLDER", help="with --label: the questions are about these")
    text = "the names of the columns of --label, as in question=Frage (default: their own)"
    parser.add_argument("--columns", type=columns_of, default=(), metavar="COLUMN=NAME,...", help=text)
    text = "file of the verdicts, new or to go on with (default: corrections.jsonl, labels.jsonl)"
    parser.add_argument("--output", type=user_path, metavar="FILE.jsonl", help=text)
    text = "decline questions with null odds above it (default: the model's)"
    parser.add_argument("--null_threshold", type=float, help=text)
    text = "decline questions whose best answer is less sure (default: 0)"
    parser.add_argument("--min_confidence", type=float, default=0.0, help=text)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    parser.add_argument("--port", type=at_least(0), default=8000, help="(default: 8000)")
    given = parser.parse_args()
    if given.label is None:
        if len(given.served) != 2:
            raise InputError("give a model and a folder of texts; or finished runs and --label QUESTIONS")
        mode, served, folder = "ask", given.served[:1], user_path(given.served[1])
        if given.texts or given.columns:
            raise InputError("--texts and --columns are those of --label: give it too, or leave them out")
        texts = FolderTexts(folder, f"texts {folder}", links_out=False)
        output = given.output or Path("corrections.jsonl")
        resolve_model(served[0], "model")
    else:
        mode, served = "label", [str(user_path(run)) for run in given.served]
        if given.null_threshold is not None or given.min_confidence:
            raise InputError("--null_threshold and --min_confidence: labels are about the runs as they are: leave out")
        texts = given.texts and FolderTexts(given.texts, f"--texts {given.texts}", links_out=False)
        output = given.output or Path("labels.jsonl")
    try:
        import uvicorn

        from swep_ds.serve.app import build
        from swep_ds.serve.session import Session
        from swep_ds.serve.verdicts import Verdicts
    except ImportError as error:
        raise InputError(f"needs pip install '.[serve]' in a checkout ({reason(error)})") from None

    session = Session(mode, served, texts, Verdicts(output))
    if mode == "label":
        questions = session.read_questions(given.label, given.columns)
    try:  # before the model is loaded, for seconds
        family = socket.getaddrinfo(given.host, given.port)[0][0]
        both = given.host == "::"  # then also at IPv4's addresses
        listening = socket.create_server((given.host, given.port), family=family, backlog=2048, dualstack_ipv6=both)
    except (OSError, OverflowError) as error:
        fix = f"give --port {8000 + (given.port + 1) % 1000}, or another --host"  # a port that needs no rights
        raise InputError(f"--host {given.host} --port {given.port}: cannot be used ({reason(error)}): {fix}") from None
    host, port = listening.getsockname()[:2]
    hosts = ["*"]
    if host in LOCAL:
        hosts = LOCAL
    if ":" in host:
        host = f"[{host}]"
    server = uvicorn.Server(uvicorn.Config(build(session, hosts), log_level="warning", timeout_graceful_shutdown=3))
    failed: list[BaseException] = []

    def load() -> None:
        try:
            if mode == "ask":
                session.load_model(null_threshold=given.null_threshold, min_confidence=given.min_confidence)
            else:
                session.load_labels(questions)
            print("ready", flush=True)
        except BaseException as error:  # raised below, where the server ends
            failed.append(error)
            server.should_exit = True

    Thread(target=load, daemon=True).start()
    print(f"http://{host}:{port}: verdicts go to {output}", flush=True)
    server.run(sockets=[listening])
    if failed:
        raise failed[0]
