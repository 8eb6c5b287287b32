"""Methods and data readers of other packages: modules that entry points name, which register them when imported.

[project.entry-points."swep_ds.methods"]
my_noise = "my_package.my_noise"
"""

from functools import cache
from importlib.metadata import entry_points
from typing import Any

from swep_ds.common.errors import as_input_error


@cache
def load_entry_points(group: str) -> None:
    """Imports what installed packages name in this group, once. Raises InputError: one cannot be imported."""
    for point in entry_points(group=group):
        what = f"entry point {point.name} = {point.value}, group {group}: cannot be imported"
        with as_input_error(what, "correct that package, or uninstall it"):
            try:
                point.load()
            except SystemExit as end:  # its code 0 would look like a finished run
                raise ImportError(f"it exits with {end.code}") from None


def check_free(name: str, former: Any, new: Any) -> None:
    """Raises TypeError if `former` is something else than an earlier definition of `new`, as in a notebook."""
    if former is not None and (former.__module__, former.__qualname__) != (new.__module__, new.__qualname__):
        raise TypeError(f"{name!r} is taken by {former.__module__}.{former.__qualname__}: choose another name")
