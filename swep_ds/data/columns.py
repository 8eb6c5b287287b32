"""The columns and fields of a question, and the names that files have for them."""

from functools import lru_cache
from typing import Any

from swep_ds.common.errors import InputError, excerpt
from swep_ds.data.answers import MRQA_COLUMN, is_missing

# (column, name) pairs: the name of the column in the files; None = their column is not read. A tuple, to be hashed
Columns = tuple[tuple[str, str | None], ...]

EXPORTS = (
    "of annotation tools, those of Label Studio, Prodigy, doccano and Argilla are read; from others, export rows with "
    "question, context, answer and answer_start"
)
USUAL = ("id", "title", "question", "context", "document", "answers", "answer", "answer_start", "is_impossible")
# "stratum": of a question that was suggested for labelling (`analysis/labelled.py`)
COLUMNS = (*USUAL, "start", "answer_category", MRQA_COLUMN, "paragraphs", "qas", "stratum")
ANSWERED = {"answers", "answer", "is_impossible"}
OTHER_NAMES = {
    "answer_text": "answer",  # Kaggle's chaii and tables of Haystack
    "context_text": "context",  # CMRC 2018, as the next two
    "query_text": "question",
    "query_id": "id",
}


def check_columns(columns: dict[str, str | None]) -> dict[str, str | None]:
    """The columns. Raises ValueError: not all keys are columns, one but the id has no name, or two have the same."""
    for column, name in columns.items():
        if column not in COLUMNS:
            raise ValueError(f"{excerpt(column)} is not one of {', '.join(USUAL)}")
        if name is None and column != "id":
            raise ValueError(f"{column}: give the name of its column; only the id can do without")
        if list(columns.values()).count(name) > 1:
            raise ValueError(f"{column}: {excerpt(name)} also stands for another column")
    return columns


@lru_cache(256)  # the rows of a file have the same names
def column_names(names: tuple[str, ...], columns: Columns) -> dict[str, str]:
    """By column of `COLUMNS`, the name that stands for it: the one that `columns` gives, if it is among `names`, or
    else its own, in any case and with spaces or a byte-order mark. Raises InputError: two names stand for a column."""
    plain = {name: _plain(name) for name in names}
    chosen = {column: name for column, wanted in columns for name in names if wanted and plain[name] == _plain(wanted)}
    ignored = {*chosen, *(column for column, name in columns if name is None)}
    if "answer" in ignored:  # which the column `answers` would go before
        ignored.add("answers")
    for name in names:
        column = OTHER_NAMES.get(plain[name], plain[name])
        if column not in COLUMNS or column in ignored or name in chosen.values():
            continue
        if column in chosen:
            raise InputError(f"has the column {column!r} twice ({chosen[column]!r}, {name!r}); keep one")
        chosen[column] = name
    return chosen


def _plain(name: Any) -> str:
    return str(name).strip(" \t\ufeff").lower()


def known_fields(item: Any, columns: Columns, unmet: set[str] | None = None) -> dict[str, Any]:
    """The fields of an article, a paragraph, a question or a row, by column. Takes the names that it has out of
    `unmet`. Raises InputError: not an object, or as `column_names`."""
    if not isinstance(item, dict):
        raise InputError(f"expected an object with fields such as context and question, found {excerpt(item)}")
    chosen = column_names(tuple(item), columns)
    if unmet:
        unmet -= {wanted for column, wanted in columns if wanted and _plain(chosen.get(column)) == _plain(wanted)}
    return {column: item[name] for column, name in chosen.items()}


def name_of(value: Any) -> str:
    """An id or a title, which may be a number; "" for none. pandas makes 7.0 of the number 7 in a column with gaps."""
    if is_missing(value):
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)


@lru_cache(256)
def check_names(
    names: tuple[str, ...], columns: Columns, needs_context: bool = False, has_documents: bool = False
) -> dict[str, str]:
    """`column_names` of a row. Raises InputError: none stands for the question or, if it is needed, for the context,
    which may be found in a document if the reader has some; or the rows are MRQA's."""
    chosen = column_names(names, columns)
    text = "context"
    if "context" not in chosen and (has_documents or "document" in chosen):
        text = "document"
    needed = ["question"]
    if needs_context:
        needed.append(text)
    missing = [column for column in needed if column not in chosen]
    if missing:
        fix = f"rename yours, or name it in data.columns (--columns), as in {missing[0]}=NAME"
        if needs_context:
            fix = f"{fix}; {EXPORTS}"
            if ANSWERED.isdisjoint(chosen):
                missing.append("answers")
        raise InputError(f"has no column {', '.join(missing)} (found: {excerpt(list(names))}): {fix}")
    if text == "document" and needs_context and not has_documents:
        raise InputError(
            "has a document in place of a context: name the folder of documents in data.texts (--texts) or, if "
            f"{chosen['document']!r} is the text itself, set data.columns.context (--columns) to it"
        )
    if MRQA_COLUMN in chosen:
        raise InputError(
            "has MRQA's column detected_answers; MRQA's contexts may have markers such as [SEP], which are no text: "
            "name the file of the shared task (.jsonl.gz)"
        )
    return chosen
