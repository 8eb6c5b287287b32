"""CSV files that a spreadsheet opens."""

import csv
import io

import pandas as pd
import pytest

from swep_ds.analysis.spreadsheet import to_csv


@pytest.mark.parametrize("text", ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "＝1"])
def test_no_text_is_a_formula_and_no_number_changes(text):
    written = to_csv(pd.DataFrame({"question_id": [text, "plain"], text: [-0.5, 1e-9], "count": [-3, 4]}))
    head, first, second = csv.reader(io.StringIO(written))
    for cell in (head[1], first[0]):
        assert cell[0] == "'"
        assert cell.isprintable()
        assert cell.endswith(text[1:])
    assert (first[1:], second) == (["-0.5", "-3"], ["plain", "1e-09", "4"])
