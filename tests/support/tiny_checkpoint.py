"""Checkpoints on disk without an engine, and changes to them that keep their checksums right."""

import functools
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from swep_ds.training.checkpoint_files import MANIFEST, checkpoint_name, seal, write_manifest

LAYOUT = {"world_size": 1, "zero_stage": 1}
BATCH = {"windows": 8, "micro_batch_size": 4, "gradient_accumulation_steps": 2}


@functools.cache
def state() -> bytes:
    """The bytes of a file that PyTorch saved."""
    file = io.BytesIO()
    torch.save({"x": torch.ones(1000)}, file)
    return file.getvalue()


@functools.cache
def described() -> dict[str, int]:
    """What the manifest says about `state`."""
    return {"size": len(state()), "seal": seal(io.BytesIO(state()))}


def write_checkpoint(folder: Path, update: int) -> Path:
    tag = folder / checkpoint_name(update)
    tag.mkdir(parents=True)
    (tag / "state.pt").write_bytes(state())
    done = {"updates": update, "windows": 8 * update, "tokens": 80 * update, "seconds": 1.5, "unlogged": {}}
    files = {"state.pt": described()}
    content = {"done": done, "setup": {}, "layout": LAYOUT, "batch": BATCH, "scores": {}, "files": files}
    write_manifest(tag, content)
    return tag


def change_manifest(tag: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the content of `complete.json` and its checksum."""
    content = json.loads((tag / MANIFEST).read_text())
    del content["checksum"]
    change(content)
    write_manifest(tag, content)


def rewrite_state(tag: Path, name: str, state: Any) -> Path:
    """Replaces the content of a file of a checkpoint, and its entry in the manifest."""
    torch.save(state, tag / name)

    def note(content: dict[str, Any]) -> None:
        with (tag / name).open("rb") as file:
            content["files"][name] = {"size": (tag / name).stat().st_size, "seal": seal(file)}

    change_manifest(tag, note)
    return tag / name


def flip(file: Path) -> None:
    """Wrong bytes, right size."""
    content = file.read_bytes()
    file.write_bytes(content[:100] + b"\xff" * 400 + content[500:])
