"""CSV text for spreadsheets: names of runs and ids of questions come from others, and none is taken for a formula."""

import pandas as pd

from swep_ds.errors import printable

FORMULA = ("=", "+", "-", "@", "\\t", "\\r", "＝", "＋", "－", "＠")  # `printable` writes tab and return as \t and \r


def to_csv(table: pd.DataFrame) -> str:
    """The table without its index. A text that a spreadsheet would compute gets a quote in front."""
    shown = table.map(lambda value: _without_formula(value) if isinstance(value, str) else value)
    return shown.rename(columns=_without_formula).to_csv(index=False)


def _without_formula(text: str) -> str:
    text = printable(text)
    return f"'{text}" if text.startswith(FORMULA) else text
