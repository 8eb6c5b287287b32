"""Calls one function of a row and prints, as JSON, the CPU seconds and the peak memory that it took.

    python -m benchmarks.growth.measure ROW FUNCTION SIZE FOLDER

What `warm_up` of the row does first, such as imports, is not counted.
"""

import json
import re
import resource
import sys
from importlib import import_module
from pathlib import Path


def measure(row: str, function: str, size: int, folder: Path) -> dict[str, float]:
    """ "seconds": of CPU, with children; "mib": the peak above the memory before, or a child's if that is more."""
    module = import_module(f"benchmarks.growth.rows.{row}")
    if function != "prepare" and hasattr(module, "warm_up"):
        module.warm_up(folder)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # VmHWM begins anew
    before = memory("VmRSS")
    began = cpu_seconds()
    getattr(module, function)(size, folder)
    seconds = cpu_seconds() - began
    of_child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {"seconds": seconds, "mib": max(memory("VmHWM") - before, of_child)}


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)


def memory(field: str) -> float:
    """A field of this process's status, in MiB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) / 1024


if __name__ == "__main__":
    _, row, function, size, folder = sys.argv
    print(json.dumps(measure(row, function, int(size), Path(folder))))
