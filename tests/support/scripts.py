"""Programs beside the package, in this process."""

import contextlib
import importlib.util
import io
import sys
from pathlib import Path
from types import ModuleType
from unittest import mock

from tests.support.fork_server import ROOT


def load(path: str) -> ModuleType:
    """A program by its path from the project's root."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(path: str, *arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of the `main` of a program."""
    printed, complaint, code = io.StringIO(), io.StringIO(), 0
    argv = mock.patch.object(sys, "argv", [path, *arguments])
    with argv, contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaint):
        try:
            load(path).main()
        except SystemExit as stop:
            code = stop.code
    return code, printed.getvalue(), complaint.getvalue()
