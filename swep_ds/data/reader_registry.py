"""Data readers that other packages and scripts add: a source `NAME:ADDRESS` is read by the reader NAME."""

import csv
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from swep_ds.common.errors import InputError, reason
from swep_ds.common.plugins import check_free, load_entry_points
from swep_ds.data.fields import excerpt

GROUP = "swep_ds.readers"  # the entry points' group
BUILT_IN = ("quickstart", "quickstart_v2")  # the second with unanswerable questions, as SQuAD v2.0 has them
Reader = Callable[[str], Iterable[dict[str, Any]]]
R = TypeVar("R", bound=Reader)
_readers: dict[str, Reader] = {}


def reader(name: str) -> Callable[[R], R]:
    """Registers a function as the reader of all sources `name:ADDRESS`, in recipes and commands.

        @sd.reader("faq")
        def read_faq(address: str):
            for row in csv.DictReader(open(address)):
                yield {"question": row["q"], "context": row["text"], "answers": {...}}

    It gets ADDRESS and yields rows: question and context (str), answers {"text": [str], "answer_start": [int]}, and if
    wanted id and title (str), which groups questions of one article. They are checked as the rows of a file are. An
    OSError, ValueError, LookupError or csv.Error that it raises is reported as a fault of the source.

    Raises TypeError: the name is taken, or is not a name.
    """
    if not isinstance(name, str):
        raise TypeError('reader: it needs a name: write @sd.reader("NAME")')

    def register(function: R) -> R:
        if not name.isidentifier() or name in BUILT_IN:
            raise TypeError(f"reader {name!r}: name it with letters, digits and '_', and not {' or '.join(BUILT_IN)}")
        check_free(name, _readers.get(name), function)
        _readers[name] = function
        return function

    return register


def find_reader(source: str) -> Reader | None:
    """The reader that a source names; None if it names none."""
    name, colon, _ = source.partition(":")
    if not colon or not name.isidentifier():
        return None
    load_entry_points(GROUP)
    return _readers.get(name)


def read_rows(source: str, read: Reader) -> Iterator[tuple[str, Any]]:
    """The rows of a source, each with its place in it. Raises InputError: its reader cannot read it."""
    name, _, address = source.partition(":")
    try:
        rows = read(address)
        if not isinstance(rows, Iterable):
            raise InputError(f"its reader {name} gives {excerpt(rows)}: yield rows, or return a list of them")
        for number, row in enumerate(rows):
            yield f"row {number}", row
    except (OSError, ValueError, LookupError, csv.Error, SystemExit) as error:
        raise InputError(f"its reader {name} cannot read it ({reason(error)}): correct the data") from error
