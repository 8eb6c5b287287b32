"""CSV text for spreadsheets: names of runs and ids of questions come from others, and none is taken for a formula."""

from typing import Any

import pandas as pd

from swep_ds.common.errors import printable

FORMULA = ("=", "+", "-", "@", "\\t", "\\r", "＝", "＋", "－", "＠")  # `printable` writes tab and return as \t and \r


def to_csv(table: pd.DataFrame) -> str:
    """The table without its index, each cell and head `shown`."""
    return table.map(shown).rename(columns=shown).to_csv(index=False)


def shown(value: Any) -> Any:
    """A text as a spreadsheet shows it: one that it would compute gets a quote in front. Other values stay."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(FORMULA) else text
