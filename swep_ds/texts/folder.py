"""The texts of a folder, which stay on disk until they are read."""

import os
import time
from pathlib import Path

from swep_ds.common.errors import InputError, as_input_error
from swep_ds.common.files import read_text

SUFFIXES = (".txt", ".md")  # of the files that are texts
SETTLED = 2 * 10**9  # ns after which a file's times have changed if its content has; some file systems keep 2 s


class FolderTexts:
    """The texts of the `SUFFIXES` files of a folder and its subfolders, by name relative to the folder, in name order.

    Each is read anew when it is asked for. Hidden files are left out. `what` is how the user named the folder. Raises
    InputError: no such folder; when texts are listed, it holds none; when one is read, as `read_text`.
    """

    def __init__(self, folder: Path, what: str):
        self.folder = folder
        self.what = what
        self.left_out = 0  # files with other names, when texts were last listed
        self.check()

    def check(self) -> None:
        if not self.folder.is_dir():
            raise InputError(f"{self.what}: no such folder")

    def states(self) -> dict[str, str]:
        """By name the size and the times of the file, in ns, of which one changes whenever its content does. They are
        left out, "", where the file changed a moment ago, as a second change might leave the same times."""
        self.check()
        states = {}
        self.left_out = 0
        now = time.time_ns()
        folders = [os.fspath(self.folder)]
        while folders:
            for entry in os.scandir(folders.pop()):
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file() and not entry.name.lower().endswith(SUFFIXES):
                    self.left_out += 1
                elif entry.is_file():
                    stat = entry.stat()
                    settled = now - max(stat.st_mtime_ns, stat.st_ctime_ns) > SETTLED
                    states[entry.path] = f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}" if settled else ""
        if not states:
            raise InputError(f"{self.what}: holds no text: put {' or '.join(SUFFIXES)} files into it")
        start = len(os.path.join(self.folder, ""))
        return {path[start:]: states[path] for path in sorted(states)}

    def __getitem__(self, name: str) -> str:
        path = self.folder / name
        with as_input_error(f"{path}: cannot be read", "change its permissions"):
            return read_text(path)
