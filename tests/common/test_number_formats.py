"""What a cell shows, as Excel shows it: the texts are those of its documentation and of sheets that it saved as CSV."""

from datetime import datetime, time, timedelta

import pytest

from swep_ds.common.number_formats import shown

DAY = datetime(2024, 3, 1, 14, 5, 9)
SHOWN = [
    (None, "0", ""),
    ("a", "0", "a"),
    (True, "0", "TRUE"),
    (7, "000", "007"),
    (7, "General", "7"),
    (2.0, "General", "2"),
    (1 / 3, "General", "0.333333333"),
    (0.1 + 0.2, "General", "0.3"),
    (1234567.891, "General", "1234567.891"),
    (0.125, "0.0%", "12.5%"),
    (0.285, "0%", "29%"),
    (1.005, "0.00", "1.01"),
    (1234.5, "#,##0.00", "1,234.50"),
    (1234567, "#,##0", "1,234,567"),
    (0, "#,##0.###", "0."),
    (2.5, "0.0##", "2.5"),
    (12345678, '#,##0.0,,"M"', "12.3M"),
    (1234.5, "[$€-407] #,##0.00", "€ 1,234.50"),
    (1234.5, "#,##0.00 [$€-407]", "1,234.50 €"),
    (-5, "0_);[Red](0)", "(5)"),
    (-5.25, "0.0", "-5.3"),
    (0, '0;-0;"none"', "none"),
    (-1234.5, '_("$"* #,##0.00_);_("$"* \\(#,##0.00\\);_("$"* "-"??_);_(@_)', "$(1,234.50)"),
    (12, '0 "kg"', "12 kg"),
    (3, 'General" units"', "3 units"),
    (DAY, "yyyy-mm-dd", "2024-03-01"),
    (DAY, "dd.mm.yyyy", "01.03.2024"),
    (DAY, "[$-409]d\\-mmm\\-yy;@", "1-Mar-24"),
    (DAY, "dddd, mmmm d, yyyy", "Friday, March 1, 2024"),
    (DAY, 'yyyy"年"m"月"d"日"', "2024年3月1日"),
    (DAY, "h:mm AM/PM", "2:05 PM"),
    (DAY, "hh:mm:ss", "14:05:09"),
    (DAY, "mm:ss", "05:09"),
    (time(9, 5), "h:mm", "9:05"),
]


@pytest.mark.parametrize(("value", "code", "text"), SHOWN)
def test_a_value_is_shown_as_excel_shows_it(value, code, text):
    assert shown(value, code, pytest.fail) == text


UNKNOWN = [
    (0.5, "# ?/?", "0.5"),
    (123456789, "000-00-0000", "123456789"),
    (5, "[>3]0.0;0", "5"),
    (DAY, "[$-407]d. mmmm yyyy", "2024-03-01 14:05:09"),
    (datetime(2024, 3, 1), "mmmmm", "2024-03-01"),
    (timedelta(hours=30), "[h]:mm", "1 day, 6:00:00"),
    (DAY, "mm-dd-yy", "3/1/2024"),  # openpyxl's name of the short date, in the form of the computer's region
]


@pytest.mark.parametrize(("value", "code", "text"), UNKNOWN)
def test_a_format_that_may_show_another_text_is_said(value, code, text):
    said = []
    assert shown(value, code, said.append) == text
    assert said == [f"cells of the number format {code} may show another text than is read: make them text"]
