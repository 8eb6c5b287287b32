"""Tries a tiny random model of every architecture that transformers has for question answering, and writes what it saw
into docs/models.md.

    python -m tools.models bert t5                # some, as a table
    python -m tools.models --write --jobs 2       # all, into the page

Each model is saved with a small tokenizer of its family's shape. What this package computes with that folder is
compared with what transformers alone computes from ids that the tokenizers library makes. Every cell comes from this
run, and every reason is a message that was raised in it. Each architecture runs in a forked process, since DeepSpeed,
PEFT and the compiler change classes and functions of a process.
"""

import argparse
import gc
import logging
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator
from multiprocessing.connection import wait
from pathlib import Path

os.environ |= {"DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

import torch
import transformers

from tools.models.making import architectures
from tools.models.page import PAGE, tables, write
from tools.models.trial import SPANS, Cells, Trial

SECONDS = 300  # for an architecture


def try_models(names: Iterable[str], columns: Iterable[str] = SPANS, jobs: int = 1) -> Iterator[tuple[str, Cells]]:
    """Name and cells of each architecture, from a forked process each, `jobs` at a time, as they end."""
    context = multiprocessing.get_context("fork")
    waiting = list(names)[::-1]
    running = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop()
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_try_model, args=(name, tuple(columns), sender))
            process.start()
            sender.close()
            running[receiver] = (name, process, time.monotonic() + SECONDS)
        ready = wait(running, timeout=1)
        late = [receiver for receiver, (_, _, end) in running.items() if time.monotonic() > end]
        for receiver in {*ready, *late}:
            name, process, _ = running.pop(receiver)
            try:
                cells = receiver.recv() if receiver in ready else {"answers": f"no: not done after {SECONDS} s"}
            except EOFError:
                cells = {"answers": "no: the process died"}
            process.kill()
            process.join()
            yield name, cells


def _try_model(name: str, columns: tuple[str, ...], sender) -> None:
    gc.freeze()  # a process group that the parent has left behind cannot be destroyed here, where its threads are not
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.getLogger("swep_ds").addHandler(logging.NullHandler())
    logging.getLogger("swep_ds").propagate = False
    with tempfile.TemporaryDirectory() as folder:
        sender.send(Trial(name, Path(folder)).cells(columns))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="as transformers calls it; default: all")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.name}")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time (default: 1)")
    options = parser.parse_args()
    spans, seq2seq, _ = architectures()
    if options.write and options.names:
        parser.error("--write: the page has all architectures: name none")
    if unknown := {*options.names} - {*spans, *seq2seq}:
        parser.error(f"{', '.join(sorted(unknown))}: no architecture with a head for question answering")
    rows: dict[str, Cells] = {}
    begun = time.monotonic()
    for name, cells in try_models(options.names or [*spans, *seq2seq], jobs=options.jobs):
        rows[name] = cells
        print(f"{time.monotonic() - begun:5.0f} s {name}: {cells}", file=sys.stderr, flush=True)
    text = tables(dict(sorted(rows.items())))
    if not options.write:
        print(text)
        return 0
    write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
