"""Numbers, dates and times as Excel shows them under a number format (ECMA-376, part 1, 18.8.31), in US English."""

import re
from collections.abc import Callable
from datetime import date, time, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from math import floor, log10

REGIONAL = {"mm-dd-yy": "m/d/yyyy", "m/d/yy h:mm": "m/d/yyyy h:mm"}  # openpyxl's names of the region's own forms
DATES = {"yyyy": "%Y", "yy": "%y", "mmmm": "%B", "mmm": "%b", "mm": "%m", "m": "%-m", "dddd": "%A", "ddd": "%a"}
DATES |= {"dd": "%d", "d": "%-d", "hh": "%H", "h": "%-H", "ss": "%S", "s": "%-S", "am/pm": "%p"}

_TOKEN = re.compile(
    r"""(?P<unknown>\[[hms<>=]|\[\$-(?!\w*09\]|F|en)[^]]*\](?=.*(?:mmm|ddd)))  # names in another language
    |\[\$(?P<currency>[^]-]*)[^]]*\]|(?P<layout>[_*].|\[[a-z]+\s?\d*\])|"(?P<quoted>[^"]*)"|\\(?P<escaped>.)
    |(?P<general>General|@)|(?P<digits>[0#?][0#?,]*(?:\.[0#?]*,*)?|\.[0#?]+)
    |(?P<minutes>(?<=h:)mm?|mm?(?=:s))|(?P<date>am/pm|y+|m+|d+|h+|s+)|(?P<other>[][a-z"])|(?P<plain>.)""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)


def shown(value: object, code: str, say: Callable[[str], None]) -> str:
    """The text of a value under the format `code`. `say` is called if a part of that is not known, or is shown as the
    computer's settings say."""
    if value is None:
        return ""
    if isinstance(value, bool | str):
        return _plain(value)
    text = _formatted(value, REGIONAL.get(code, code))
    if text is None or (code in REGIONAL and not isinstance(value, int | float)):
        say(f"cells of the number format {code} may show another text than is read: make them text")
    return _plain(value) if text is None else text


def _plain(value: object) -> str:
    """A value under the format "General", which shows fractions with ten digits, or nine after "0."."""
    if isinstance(value, float):
        digits = 10 + min(0, floor(log10(abs(value) or 1)))
        if value.is_integer():
            digits = 15
        return f"{value:.{digits}g}".upper()
    if isinstance(value, bool):
        return str(value).upper()
    return str(value).removesuffix(" 00:00:00")


def _formatted(value: int | float | date | time | timedelta, code: str) -> str | None:
    is_number = isinstance(value, int | float)
    section, *others = code.split(";")  # for numbers above, below and equal to 0
    sign = ""
    if is_number and value < 0 and others:
        section = others[0]
    elif is_number and value < 0:
        sign = "-"
    elif value == 0 and len(others) > 1:
        section = others[1]
    directives = dict(DATES)
    if "am/pm" in section.lower():
        directives |= {"hh": "%I", "h": "%-I"}
    tokens = [(token.lastgroup, token[token.lastgroup]) for token in _TOKEN.finditer(section)]
    if sum(kind == "digits" for kind, _ in tokens) > 1:  # a fraction, or a number in parts
        return None
    texts = [sign]
    for kind, text in tokens:
        if kind == "general" and is_number:
            texts.append(_plain(abs(value)))
        elif kind == "digits" and is_number:
            texts.append(_digits(abs(value), text, section.count("%")))
        elif kind == "minutes" and not is_number:
            texts.append(value.strftime({"mm": "%M", "m": "%-M"}[text.lower()]))
        elif kind == "date" and not is_number and text.lower() in directives:
            texts.append(value.strftime(directives[text.lower()]))
        elif kind in ("currency", "quoted", "escaped", "plain"):
            texts.append(text)
        elif kind != "layout":
            return None
    return "".join(texts).strip()


def _digits(value: float, code: str, percents: int) -> str:
    thousands = len(re.findall(r",(?=[,.]|$)", code))  # commas that each divide by 1,000
    whole, point, decimals = code.replace(",", "").partition(".")
    exact = Decimal(str(value)).scaleb(2 * percents - 3 * thousands)
    rounded = exact.quantize(Decimal(1).scaleb(-len(decimals)), ROUND_HALF_UP, Context(400))
    before, _, after = f"{rounded:,f}".partition(".")
    if code.count(",") == thousands:
        before = before.replace(",", "")
    needed = decimals.rfind("0") + 1
    return before.removeprefix("0").zfill(whole.count("0")) + point + after[:needed] + after[needed:].rstrip("0")
