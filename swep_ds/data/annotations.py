"""Exports of annotation tools, read as they are: Label Studio, Prodigy, doccano and Argilla.

A tool is recognised by the first item of its export. The shapes are those of label-studio-sdk 2.1.2 (converter),
Prodigy's ner_manual and spans_manual, doccano's data_export and argilla 2.8.0 (records/_io).
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Any, NamedTuple

from swep_ds.common.errors import InputError, as_input_error, at, excerpt
from swep_ds.data.answers import listed, nested_value
from swep_ds.data.columns import Columns, known_fields, name_of

Items = Iterator[tuple[str, Any]]
Row = dict[str, Any]
Read = tuple[Row, list[tuple[list["Span"], str]]]  # what was imported; the spans and the status of each submission

ANSWERED = "answered"  # the status of a submission that counts; no span says that there is no answer
PRODIGY_STATUSES = {"accept": ANSWERED, "reject": "rejected", "ignore": "ignored"}
DOCCANO_SPANS = ("entities", "label", "labels")  # with relations; without; in old versions
CHARACTERS, UTF16 = ("utf-32-le", 4), ("utf-16-le", 2)  # units, as an encoding and the bytes of one


class Span(NamedTuple):
    """A marked part of a context, without the unit at `end`."""

    label: str
    control: str  # the column or question that it was marked for
    start: Any
    end: Any
    text: str | None = None  # as the export has it


class Tool(NamedTuple):
    name: str
    read: Callable[[Row], Read]
    context: tuple[str, ...]  # the fields that may hold it, the likelier first
    units: tuple[tuple[str, int], ...]  # in which spans may be counted


class Item(NamedTuple):
    """An article, a paragraph or a row as the file has it, or a question of an export as a row."""

    place: str
    row: Any
    remark: str = ""  # why the question is left out, or that its imported answer is not read
    left_out: bool = False


class Question(NamedTuple):
    place: str  # its first item's
    row: Row  # as imported
    spans: list[Span]
    statuses: set[str]  # all submissions'; spans are only those that count


def annotated_rows(items: Items, columns: Columns, unmet: set[str], *, labels: bool) -> Iterator[Item]:
    """The items; in place of an export's those of its questions: rows {id, title, question, context, answers}.

    `columns` and `unmet` as in `known_fields`. Without `labels` no question is left out: those without an annotation
    have no `answers`.
    Raises InputError: an export of another tool, or one that does not say what or where the answers are.
    """
    first = list(islice(items, 1))
    items = chain(first, items)
    tool = next((tool_of(item) for _, item in first), None)
    if tool is None:
        yield from (Item(*item) for item in items)
        return
    questions = _pooled(tool, items, columns, unmet)
    names = _answer_names(tool, questions, labels)
    for question in questions:
        id_ = question.row.get("id")
        is_answered = ANSWERED in question.statuses
        if labels and not is_answered:
            reasons = ", ".join(sorted(question.statuses)) or "not annotated"
            yield Item(question.place, question.row, f"{reasons}: left out", left_out=True)
            continue
        remark = ""
        row = {name: question.row[name] for name in ("id", "title", "question", "context") if name in question.row}
        if names and is_answered and isinstance(row.get("context"), str):
            with at(f"question {excerpt(name_of(id_) or question.place)}"):
                pairs = [_text_and_start(tool, span, row["context"]) for span in question.spans if span[:2] == names]
            pairs = list(dict.fromkeys(pairs))
            row["is_impossible"] = not pairs
            row["answers"] = {"text": [text for text, _ in pairs], "answer_start": [start for _, start in pairs]}
            old = question.row.get("answers") or question.row.get("answer")
            if name_of(old) and old != row["answers"]:
                remark = "the imported answer is not read: the annotation counts"
        if not row.keys() >= {"question", "context"}:
            row = question.row  # the message about it names all that it has
        yield Item(question.place, row, remark)


def tool_of(item: Any) -> Tool | None:
    """The tool whose export begins with this. Raises InputError: an export that forgets what was discarded."""
    if not isinstance(item, dict):
        return None
    names = item.keys()
    if names >= {"fields", "responses", "suggestions"}:
        raise InputError("Argilla's to_json forgets what was discarded: export to_datasets or to_list(flatten=True)")
    if any(str(name).endswith(".responses") for name in names):
        return ARGILLA
    if isinstance(item.get("data"), dict) and isinstance(item.get("annotations", item.get("completions")), list):
        return LABEL_STUDIO
    if "annotator" in names and ("lead_time" in names or any("labels'" in str(cell) for cell in item.values())):
        return LABEL_STUDIO_ROWS
    if item.get("answer") in list(PRODIGY_STATUSES) and ("spans" in names or "_task_hash" in names):
        return PRODIGY
    marks = next((item[name] for name in DOCCANO_SPANS if isinstance(item.get(name), list)), None)
    if marks is None or "text" not in names:
        return None
    is_plain = any(isinstance(mark, str) for mark in marks) or not names.isdisjoint({"context", "answer", "answers"})
    return DOCCANO if "Comments" in names or not is_plain else None


def _pooled(tool: Tool, items: Items, columns: Columns, unmet: set[str]) -> list[Question]:
    """The questions of an export, in which each annotator may have an item."""
    questions: dict[tuple[str, ...], Question] = {}
    for place, item in items:
        with as_input_error(f"{place} is not as {tool.name} writes it", "export it again"):
            imported, submissions = tool.read(item)
            row = imported | known_fields(imported, columns, unmet)
        row |= next(({"context": row[name]} for name in tool.context if row.get(name)), {})
        asked = tuple(str(row.get(name)) for name in ("id", "question", "context"))
        question = questions.setdefault(asked, Question(place, row, [], set()))
        for spans, status in submissions:
            question.statuses.add(status)
            if status == ANSWERED:
                question.spans.extend(spans)
    return list(questions.values())


def _answer_names(tool: Tool, questions: list[Question], labels: bool) -> tuple[str, ...]:
    """Label and control of the spans that are answers. Raises InputError: there is none, or nothing says which."""
    names = {span[:2] for question in questions for span in question.spans}
    if labels and not names and any(ANSWERED in question.statuses for question in questions):
        raise InputError(
            f"an export of {tool.name} without a marked span: typed or imported answers are read from rows"
        )
    for number in range(2):
        if len(names) > 1:
            names = {name for name in names if str(name[number]).lower() == "answer"} or names
    if len(names) > 1:
        shown = excerpt(sorted({str(part) for name in names for part in name}))
        raise InputError(f"an export of {tool.name} with the labels {shown}: name that of the answers Answer")
    return next(iter(names), ())


def _text_and_start(tool: Tool, span: Span, context: str) -> tuple[str, int]:
    """Text and first character of a span. Raises InputError: it is no place in the context, or there are two."""
    places = []
    for encoding, size in tool.units:
        units = context.encode(encoding, "surrogatepass")
        if isinstance(span.start, int) and 0 <= span.start < span.end <= len(units) // size:
            before, marked = units[: size * span.start], units[size * span.start : size * span.end]
            places.append((marked.decode(encoding, "ignore"), len(before.decode(encoding, "ignore"))))
    if places and span.text is not None:  # with granularity="word" Label Studio's is a part of the words that it marks
        said = _letters(span.text)
        fitting = [place for place in places if said in _letters(place[0])]
        fitting.sort(key=lambda place: _letters(place[0]) != said)
        places = fitting[:1] or [(span.text, span.start)]  # every reader of answers reports what does not fit
    if len(set(places)) != 1 or not places[0][0]:
        where = f"its span {excerpt(span.start)} to {excerpt(span.end)} is no place in the context"
        raise InputError(f"{where}, or two (in UTF-16 units): mark it again, in plain text, not in HTML or a dialogue")
    return places[0]


def _letters(text: str) -> str:
    """A text without white space, which Label Studio merges or writes as the letters \\n."""
    return "".join(text.replace("\\n", " ").split())


def _spans(control: str, cell: Any) -> list[Span]:
    """The spans of a cell, one for each label: under `label` or, in Label Studio, in `labels`, `hypertextlabels` or the
    like. None of another cell, such as one of typed answers."""
    spans = []
    for mark in _listed(cell):
        if isinstance(mark, dict) and "start" in mark:
            for name in mark:
                if name.endswith(("label", "labels")):
                    place = (control, mark["start"], mark["end"], mark.get("text"))
                    spans += [Span(str(label).lower(), *place) for label in listed(mark[name])]
    return spans


def _listed(cell: Any) -> list[Any]:
    """A list, which a table of text holds as JSON or as Python prints it; none of another cell."""
    if isinstance(cell, str) and cell.startswith("["):
        with suppress(ValueError, SyntaxError, TypeError, RecursionError):
            cell = nested_value(cell)
    return cell if isinstance(cell, list) else []


def _label_studio(task: Row) -> Read:
    submissions = []
    for annotation in task.get("annotations", task.get("completions")):  # the latter before version 1
        results = annotation.get("result") or []
        spans = [span for result in results for span in _spans(result.get("from_name"), [result.get("value")])]
        status = ANSWERED
        if annotation.get("was_cancelled") or annotation.get("skipped"):
            status = "skipped"
        elif not spans and any("text" in result.get("value", {}) for result in results):
            status = "typed, not marked"
        submissions.append((spans, status))
    return {"id": task.get("id"), **task["data"]}, submissions


def _label_studio_row(row: Row) -> Read:
    """A row of JSON-MIN or CSV, which is an annotation or, with an empty annotation_id, a task without one. A column
    holds what was marked for a control, or what was imported."""
    spans = [span for name, cell in row.items() for span in _spans(name, cell)]
    imported = {name: cell for name, cell in row.items() if not _spans(name, cell)}
    return imported, [(spans, ANSWERED)] if name_of(row.get("annotation_id", "unknown")) else []


def _prodigy(row: Row) -> Read:
    imported = {**(row.get("meta") or {}), **row, "answer": None}  # which is the status
    return imported, [(_spans("", row.get("spans")), PRODIGY_STATUSES[row["answer"]])]


def _doccano(row: Row) -> Read:
    spans = []
    for mark in next(row[name] for name in DOCCANO_SPANS if name in row):
        if isinstance(mark, dict):
            mark = [mark["start_offset"], mark["end_offset"], mark["label"]]
        if not isinstance(mark, str):  # an answer that was typed
            start, end, label = mark
            spans.append(Span(str(label).lower(), "", start, end))
    return {**(row.get("meta") or {}), **row}, [(spans, ANSWERED)]


def _argilla(row: Row) -> Read:
    """Each of the data set's questions has a response of each user, and its status."""
    submissions = []
    for name in row:
        if name.endswith(".responses"):
            for response, status in zip(_listed(row[name]), _listed(row[f"{name}.status"]), strict=True):
                spans = _spans(name.removesuffix(".responses"), response)
                submissions.append((spans, ANSWERED if status == "submitted" else str(status)))
    return row, submissions


LABEL_STUDIO = Tool("Label Studio", _label_studio, ("context", "text"), (CHARACTERS, UTF16))  # now; once
LABEL_STUDIO_ROWS = LABEL_STUDIO._replace(read=_label_studio_row)
PRODIGY = Tool("Prodigy", _prodigy, ("text", "context"), (CHARACTERS,))
DOCCANO = Tool("doccano", _doccano, ("text", "context"), (UTF16,))
ARGILLA = Tool("Argilla", _argilla, ("context", "text"), (UTF16,))
