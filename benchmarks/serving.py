"""Measures `swep-ds serve` under load, beside a server that answers one question at a time.

    python -m benchmarks.serving MODEL FOLDER QUESTIONS --requests 5000

QUESTIONS is any source of data; a question that occurs again is left out. Both servers run at once, and 200 clients ask
each in turn. The script prints requests and CPU seconds of both, how many replies were lost or differ from the other
server's, and the longest wait for a page meanwhile. --repeat asks each question so many times.
"""

import asyncio
import os
import sys
import threading
import time
from pathlib import Path
from subprocess import Popen
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from swep_ds.commands.cli import Parser, at_least, main
from swep_ds.common.files import user_path
from swep_ds.data.readers import read_examples

ONE_AT_A_TIME = "--one-at-a-time"  # how this script starts the server that it compares with
PLACE = ("answer", "text", "start", "end")  # what must be equal
TURNS = 2


def serve_one_at_a_time(model: str, folder: str, port: str) -> None:
    """A server whose threads take turns at the model, with the same fields in its replies."""
    import uvicorn
    from fastapi import Body, FastAPI

    import swep_ds as sd

    asks = sd.QuestionAnswerer(model).over(folder)
    app = FastAPI()
    lock = threading.Lock()

    @app.get("/state")
    def state() -> dict[str, bool]:
        return {"ready": True}

    @app.post("/answer")
    def answer(question: str = Body(embed=True)) -> dict[str, Any]:
        with lock:
            [best] = asks(question)
        return {"answer": best.text, "text": best.name, "start": best.start, "end": best.end}

    uvicorn.run(app, port=int(port), log_level="warning")


async def ready(client: httpx.AsyncClient) -> None:
    while True:
        try:
            if (await client.get("/state")).json()["ready"]:
                return
        except httpx.ConnectError:
            pass  # it starts
        await asyncio.sleep(0.5)


async def load(client: httpx.AsyncClient, questions: list[str], clients: int) -> tuple[list[Any], float]:
    """The replies in the order of the questions, and the longest wait for /state, in seconds, while they were asked."""
    replies: list[Any] = [None] * len(questions)
    numbers = iter(range(len(questions)))
    longest = 0.0

    async def ask() -> None:
        for number in numbers:
            reply = await client.post("/answer", json={"question": questions[number]})
            replies[number] = [reply.json()[name] for name in PLACE] if reply.status_code == 200 else None

    async def look() -> None:
        nonlocal longest
        while True:
            began = time.perf_counter()
            await client.get("/state")
            longest = max(longest, time.perf_counter() - began)
            await asyncio.sleep(0.2)

    looking = asyncio.create_task(look())
    await asyncio.gather(*(ask() for _ in range(clients)))
    looking.cancel()
    return replies, longest


def cpu_seconds(process: Popen) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def compare(servers: dict[str, tuple[Popen, str]], questions: list[str], clients: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in servers}
    replies: dict[str, list[Any]] = {}
    limits = httpx.Limits(max_connections=clients + 1)
    for _, url in servers.values():
        async with httpx.AsyncClient(base_url=url, timeout=None) as client:
            await ready(client)
    for turn in range(TURNS):
        part = questions[turn::TURNS]
        for name, (process, url) in servers.items():
            async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
                before, began = cpu_seconds(process), time.perf_counter()
                said, longest = await load(client, part, clients)
                seconds[name].append(time.perf_counter() - began)
            used = cpu_seconds(process) - before
            replies[name] = said
            rate = len(part) / seconds[name][-1]
            lost = sum(reply is None for reply in said)
            print(f"{name:14} {len(part)} requests: {rate:6.1f} a second, {used:6.1f} CPU s, {lost} lost, ", end="")
            print(f"/state within {longest:.2f} s")
        alone, other = replies.values()
        print(f"    {sum(a != b for a, b in zip(alone, other, strict=True))} replies differ")
    alone, other = (sum(each) for each in seconds.values())
    print(f"throughput: {other / alone:.2f} x that of one at a time")


def bench() -> None:
    options = Parser(description=__doc__)
    options.add_argument("model")
    options.add_argument("folder", type=user_path)
    options.add_argument("questions", metavar="QUESTIONS")
    options.add_argument("--requests", type=at_least(TURNS), default=5000)
    options.add_argument("--clients", type=at_least(1), default=200)
    options.add_argument("--repeat", type=at_least(1), default=1)
    options.add_argument("--port", type=at_least(1), default=8750, help="and the next one")
    given = options.parse_args()
    examples = read_examples(given.questions, training=False, labels=False)
    different = list(dict.fromkeys(example.question for example in examples))
    questions = different[: given.requests // given.repeat] * given.repeat
    python = [sys.executable, "-m"]
    with TemporaryDirectory() as folder:
        where = [given.model, str(given.folder)]
        verdicts = str(Path(folder) / "corrections.jsonl")
        ports = [str(given.port), str(given.port + 1)]
        together = [*python, "swep_ds", "serve", *where, "--port", ports[0], "--output", verdicts]
        commands = {
            "together": together,
            "one at a time": [*python, "benchmarks.serving", ONE_AT_A_TIME, *where, ports[1]],
        }
        servers = {}
        try:
            for (name, command), port in zip(commands.items(), ports, strict=True):
                servers[name] = (Popen(command), f"http://127.0.0.1:{port}")
            asyncio.run(compare(servers, questions, given.clients))
        finally:
            for process, _ in servers.values():
                process.terminate()


if __name__ == "__main__":
    if sys.argv[1:2] == [ONE_AT_A_TIME]:
        serve_one_at_a_time(*sys.argv[2:])
    else:
        main(bench)
