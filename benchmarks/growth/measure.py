"""Calls one function of a row and prints, as JSON, the CPU seconds and the peak memory that it took.

    python -m benchmarks.growth.measure ROW FUNCTION SIZE FOLDER

What `warm_up` of the row does first, such as imports, is not counted. Memory is the process's own (RssAnon), which the
system's peak is not: that has the pages of mapped files, too, such as those of libraries and of an index.
"""

import json
import re
import resource
import sys
from importlib import import_module
from pathlib import Path
from threading import Event, Thread

EVERY = 0.005  # seconds between two looks at the memory


class Peak(Thread):
    """The largest memory of this process, in MiB, while the `with` block runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.mib = own_memory()
        self.seconds = 0.0  # CPU time that looking took
        self._ended = Event()

    def run(self) -> None:
        while not self._ended.wait(EVERY):
            self.mib = max(self.mib, own_memory())
        used = resource.getrusage(resource.RUSAGE_THREAD)
        self.seconds = used.ru_utime + used.ru_stime

    def __enter__(self) -> "Peak":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()
        self.mib = max(self.mib, own_memory())


def measure(row: str, function: str, size: int, folder: Path) -> dict[str, float]:
    """ "seconds": of CPU, with children; "mib": the peak above the memory before, or that of a command that was run."""
    module = import_module(f"benchmarks.growth.rows.{row}")
    if function != "prepare" and hasattr(module, "warm_up"):
        module.warm_up(folder)
    before = own_memory()
    began = cpu_seconds()
    with Peak() as peak:
        getattr(module, function)(size, folder)
    seconds = cpu_seconds() - began - peak.seconds
    ours, of_child = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    if of_child <= ours:  # until a child has started its program, the system counts its parent's pages as its own
        of_child = 0
    return {"seconds": seconds, "mib": max(peak.mib - before, of_child / 1024)}


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)


def own_memory() -> float:
    """This process's pages that are no file's, in MiB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) / 1024


if __name__ == "__main__":
    _, row, function, size, folder = sys.argv
    print(json.dumps(measure(row, function, int(size), Path(folder))))
