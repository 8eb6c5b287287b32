"""Before a long job: whether all ranks see the same, and what would end the start."""

import hashlib
import os
import platform
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import shorten

import psutil
import torch
from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from safetensors import safe_open

from swep_ds import ranks
from swep_ds.common.console import Console
from swep_ds.common.errors import InputError, as_input_error
from swep_ds.common.files import PACKAGE, ds_config_path, shipped, user_path
from swep_ds.common.spreadsheets import split_sheet
from swep_ds.data.readers import DATA_SUFFIXES, QUICKSTART, find_reader
from swep_ds.evaluation.results import versions
from swep_ds.models.folders import resolve_model, weight_files
from swep_ds.pipeline import prepare
from swep_ds.pipeline.folder import check_files
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks import accelerator
from swep_ds.ranks.writing import find_fault

Report = dict[str, str]  # subject -> what a rank sees
FAULTS = ("missing", "not writable", "not shared")  # values that begin so are wrong on any rank
ENDS = 2**16  # bytes at a file's head and tail that are compared


def preflight(recipe: Recipe, ds_config: str, output_dir: Path) -> None:
    """Collective. Prints what rank 0 sees.

    Raises InputError: on all ranks, with everything that they see differently, that is missing or not writable; or else
    with what a start would end with.
    """
    say = Console(quiet=not ranks.is_main()).print
    report = ranks.on_all_ranks(lambda: observe(recipe, ds_config))
    report[f"output_dir {output_dir}"] = find_fault(output_dir) or "writable, shared"
    hosts = [ranks.host(rank) for rank in range(ranks.world_size())]
    width = max(map(len, report))
    say(f"{_ranks(range(len(hosts)), hosts)}; the first one sees:")
    for subject, value in report.items():
        say(f"  {subject:{width}}  {value}")
    if faults := disagreements(hosts, ranks.gather(report)):
        raise InputError(f"preflight: {'; '.join(faults)}")
    ranks.on_all_ranks(lambda: _check_start(recipe, ds_config, output_dir))
    say("preflight: all ranks see the same")


def _check_start(recipe: Recipe, ds_config: str, output_dir: Path) -> None:
    """What a start checks on this rank, as far as it needs no data, weights or download."""
    check_files(recipe, output_dir)
    on_cpu = ranks.device().type == "cpu"
    recipe = prepare.check_ds_config(recipe, ds_config, output_dir, ranks.world_size(), on_cpu=on_cpu)
    name = recipe.model.name
    source = resolve_model(name)
    if Path(source).is_dir():
        for file in weight_files(Path(source)):
            if file.suffix == ".safetensors":
                with as_input_error(f"model.name {name}: its {file.name} is damaged", "fetch it again"):
                    safe_open(file, "pt")
        prepare.load(recipe, ds_config, prepare.run_tokenizer(recipe), source, weights=False)


def observe(recipe: Recipe, ds_config: str) -> Report:
    """What this rank sees. Nodes may differ in the number of cores or devices."""
    report = {"device": f"CPU {platform.machine()}, {psutil.virtual_memory().total / 2**30:.0f} GiB", **versions()}
    if accelerator.on_gpu():
        size = accelerator.total_memory()[ranks.device().index]
        report["device"] = f"{accelerator.product_name()}, {size / 2**30:.0f} GiB"
    if accelerator.device_type() == "cuda":
        report["CUDA, NCCL"] = f"{torch.version.cuda}, {'.'.join(map(str, torch.cuda.nccl.version()))}"
    report["code of this package"] = fingerprint([*PACKAGE.rglob("*.py"), *shipped("kernels").rglob("*.py")], PACKAGE)
    report["recipe"] = hashlib.sha256(recipe.dump().encode()).hexdigest()[:8]
    report[f"ds_config {ds_config}"] = _files(ds_config_path(ds_config))
    model = recipe.model.name
    report[f"model.name {model}"] = _files(user_path(resolve_model(model))) or _cached(model, "model")
    return report | {f"{field} {source}": _data(source) for field, source in recipe.sources.items()}


def _data(source: str) -> str:
    if source.startswith(QUICKSTART) or find_reader(source):
        return "no file"
    if files := _files(split_sheet(source)[0]):
        return files
    if DATA_SUFFIXES & set(Path(source).suffixes):
        return "missing"
    return _cached(re.split("[:@]", source)[0], "dataset")


def _cached(hub_id: str, kind: str) -> str:
    try:
        folder = Path(snapshot_download(hub_id, repo_type=kind, local_files_only=True))
    except HFValidationError:  # not even a name
        return "missing"
    except LocalEntryNotFoundError:
        if constants.is_offline_mode():
            return "missing from the hub's cache, and offline mode downloads nothing"
        return "not in the hub's cache, would be downloaded"
    return f"cached, {_files(folder)}"


def _files(path: Path) -> str:
    """The fingerprint of a file or folder; empty if there is none."""
    if path.is_dir():
        return fingerprint(path.rglob("*"), path)
    return fingerprint([path], path.parent) if path.exists() else ""


def fingerprint(files: Iterable[Path], root: Path) -> str:
    """Number, size and checksum of files. The paths below `root` count, not where it is."""
    digest = hashlib.sha256()
    sizes = []
    for file in sorted(file for file in files if file.is_file()):
        size = file.stat().st_size
        sizes.append(size)
        digest.update(f"{os.path.relpath(file, root)} {size} ".encode())
        with file.open("rb") as opened:
            digest.update(opened.read(ENDS))
            opened.seek(max(0, size - ENDS))
            digest.update(opened.read(ENDS))
    return f"{len(sizes)} file(s), {sum(sizes):,} bytes, {digest.hexdigest()[:8]}" if sizes else "missing"


def disagreements(hosts: Sequence[str], reports: Sequence[Report]) -> list[str]:
    """Each subject that ranks see differently or that is wrong, and who sees what."""
    faults = []
    for subject in dict.fromkeys(subject for report in reports for subject in report):
        values: dict[str, list[int]] = {}
        for rank, report in enumerate(reports):
            values.setdefault(report.get(subject, "missing"), []).append(rank)
        if len(values) > 1 or next(iter(values)).startswith(FAULTS):
            most_first = sorted(values.items(), key=lambda item: -len(item[1]))
            seen = ", ".join(f"{value} on {_ranks(group, hosts)}" for value, group in most_first)
            faults.append(f"{subject}: {shorten(seen, 500)}")
    return faults


def _ranks(group: Sequence[int], hosts: Sequence[str]) -> str:
    if len(group) == 1:
        return f"rank {group[0]} ({hosts[group[0]]})"
    names = ", ".join(dict.fromkeys(hosts[rank] for rank in group))
    return f"{len(group)} ranks ({shorten(names, 50)})"
