"""Exports of annotation tools, read as they are: Label Studio, Prodigy, doccano and Argilla.

A tool is recognised by the first item of its export. What its annotators marked for a question becomes a plain row with
the question's answers. Ends of spans are exclusive. The shapes are those of label-studio-sdk 2.1.2 (converter),
Prodigy's ner_manual and spans_manual, doccano's data_export and argilla 2.8.0 (records/_io).
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Any, NamedTuple

from swep_ds.common.errors import InputError, as_input_error, at, excerpt
from swep_ds.data.answers import answer_pairs, is_missing, nested_value

Items = Iterator[tuple[str, Any]]
Row = dict[str, Any]

NOT_ANNOTATED = "not annotated"
PRODIGY_NAMES = {"_task_hash", "_input_hash", "_view_id"}
PRODIGY_STATUSES = {"accept": "", "reject": "rejected", "ignore": "ignored"}  # and why a question is left out
DOCCANO_SPANS = ("label", "entities", "labels")


class Span(NamedTuple):
    """A marked part of a context, or a typed answer, whose `start` is None."""

    label: str
    control: str  # the column or question that it was marked for
    start: Any
    end: Any
    text: str | None  # as the export has it


class Submission(NamedTuple):
    """What an annotator said about a question."""

    row: Row  # what was imported
    spans: list[Span]
    left_out: str = ""  # why this does not answer the question


class Tool(NamedTuple):
    name: str
    read: Callable[[Row], Iterator[Submission]]
    context: tuple[str, ...]  # the fields that may hold it, the likelier first
    in_characters: bool = False  # whether spans are counted so; where both may be, the span's text tells
    in_utf16: bool = False  # as browsers count: an emoji is two units


def annotated_rows(
    items: Items, rename: Callable[[Row], Row], remark: Callable[[str, str, bool], None], labels: bool
) -> Items:
    """The items; in place of an export's those of its questions: rows {id, title, question, context, answers}.

    Args:
        rename: gives the fields of an imported row their usual names.
        remark: is told of a question whose imported answer is not read, or that is left out: id, why, whether left out.
        labels: whether questions without an annotation are left out; else they have no `answers`.

    Raises InputError: an export of another tool, or one that does not say what or where the answers are.
    """
    first = list(islice(items, 1))
    items = chain(first, items)
    tool = tool_of(first[0][1]) if first else None
    return _question_rows(tool, items, rename, remark, labels) if tool else items


def tool_of(item: Any) -> Tool | None:
    """The tool whose export begins with this. Raises InputError: an export that forgets what was discarded."""
    if not isinstance(item, dict):
        return None
    names = item.keys()
    if names >= {"fields", "responses", "suggestions"}:
        raise InputError("Argilla's to_json forgets what was discarded: export to_datasets or to_list(flatten=True)")
    if any(str(name).endswith((".responses", ".suggestion")) for name in names):
        return ARGILLA
    if isinstance(item.get("data"), dict) and isinstance(item.get("annotations", item.get("completions")), list):
        return LABEL_STUDIO
    if names >= {"annotation_id", "annotator"} or any(map(_regions, item.values())):
        return LABEL_STUDIO_ROWS
    if item.get("answer") in list(PRODIGY_STATUSES) and ("spans" in names or names & PRODIGY_NAMES):
        return PRODIGY
    marks = next((item[name] for name in DOCCANO_SPANS if isinstance(item.get(name), list)), None)
    if marks is not None and isinstance(item.get("text"), str):
        is_marked = any(isinstance(mark, list) or (isinstance(mark, dict) and "start_offset" in mark) for mark in marks)
        if is_marked or "Comments" in names or "context" not in names:
            return DOCCANO
    return None


def is_export(names: tuple[str, ...]) -> bool:
    """Whether a table with these columns may be an export, whose other columns are needed, too."""
    return any(name in {*PRODIGY_NAMES, "annotation_id", "Comments"} or name.endswith(".responses") for name in names)


def _question_rows(tool: Tool, items: Items, rename: Callable, remark: Callable, labels: bool) -> Items:
    questions: dict[tuple[str, ...], tuple[str, list[Submission]]] = {}  # the first item's place, and all annotators'
    for place, item in items:
        with as_input_error(f"{place} is not as {tool.name} writes it", "export it again"):
            given = [submission._replace(row=rename(submission.row)) for submission in tool.read(item)]
        for submission in given:
            row = submission.row
            row |= next(({"context": row[name]} for name in tool.context if row.get(name)), {})
            asked = tuple(str(row.get(name)) for name in ("id", "question", "context"))
            questions.setdefault(asked, (place, []))[1].append(submission)
    names = _answer_names(tool, [submission for _, given in questions.values() for submission in given])
    for place, submissions in questions.values():
        imported = submissions[0].row
        answered = [submission for submission in submissions if not submission.left_out]
        id_ = place if is_missing(imported.get("id")) else str(imported["id"])
        if labels and not answered:
            reasons = sorted({submission.left_out for submission in submissions})
            remark(id_, f"{', '.join(reasons)}: left out", True)
            continue
        row = {name: imported[name] for name in ("id", "title", "question", "context") if name in imported}
        if answered and isinstance(row.get("context"), str):
            spans = [span for submission in answered for span in submission.spans if span[:2] == names]
            with at(f"question {excerpt(id_)}"):
                pairs = list(dict.fromkeys(_text_and_start(tool, span, row["context"]) for span in spans))
            row["is_impossible"] = not pairs
            row["answers"] = {"text": [text for text, _ in pairs], "answer_start": [start for _, start in pairs]}
            if _differs(imported, pairs):
                remark(id_, "the imported answer is not that of the annotation: not read", False)
        yield place, row if "context" in row and "question" in row else imported  # to say what it has in their place


def _answer_names(tool: Tool, submissions: list[Submission]) -> tuple[str, str]:
    """Label and control of those spans that are answers. Typed answers are only where nothing is marked. Raises
    InputError: nothing says which."""
    answered = [submission for submission in submissions if not submission.left_out]
    spans = [span for submission in answered for span in submission.spans]
    if not spans and any(_differs(submission.row, []) for submission in answered):
        raise InputError(
            f"an export of {tool.name} in which no span is marked, with answers that were imported: if annotators "
            "accepted those, write them as rows; else mark the answers"
        )
    names = {span[:2] for span in spans if span.start is not None} or {span[:2] for span in spans} or {("", "")}
    for number in range(2):
        if len(names) > 1:
            names = {name for name in names if name[number].lower() == "answer"} or names
    if len(names) > 1:
        shown = excerpt(sorted(label or control for label, control in names))
        raise InputError(f"an export of {tool.name} with the labels {shown}: name that of the answers Answer")
    return names.pop()


def _differs(imported: Row, pairs: list[tuple[str, int | None]]) -> bool:
    """Whether the imported row has another answer, or the same text elsewhere."""
    try:
        old = answer_pairs({"answers": None, "answer": None, **imported}, str(imported.get("context")))
    except InputError:  # malformed: there is something that is not read
        return True
    texts = [text for text, _ in pairs]
    return any(pair not in pairs and (pair[1] is not None or pair[0] not in texts) for pair in old)


def _text_and_start(tool: Tool, span: Span, context: str) -> tuple[str, int | None]:
    """Text and first character of a span. As the export has them where they do not fit together: every reader of
    answers reports that. Raises InputError: it is no place in the context, or without a text there are two."""
    begin, end = span.start, span.end
    if begin is None:
        return span.text, None
    if not (type(begin) is type(end) is int):
        raise InputError(
            f"its span begins at {excerpt(begin)}, a place in HTML or a dialogue: import plain text, mark that"
        )
    places = []
    units = context.encode("utf-16-le", "surrogatepass")
    if tool.in_characters and 0 <= begin < end <= len(context):
        places.append((context[begin:end], begin))
    if tool.in_utf16 and 0 <= begin < end <= len(units) // 2:
        with suppress(UnicodeDecodeError):  # it begins or ends inside of a character
            marked = units[2 * begin : 2 * end].decode("utf-16-le")
            places.append((marked, len(units[: 2 * begin].decode("utf-16-le"))))
    if span.text is not None:
        said = _letters(span.text)
        equal = [place for place in places if _letters(place[0]) == said]
        # with granularity="word" Label Studio's text is what was selected, and the span its whole words
        longer = [place for place in places if said in _letters(place[0])]
        return next(iter(equal or longer), (span.text, begin))
    if len(set(places)) != 1:
        raise InputError(
            f"its span {begin} to {end} is no place in the context, or two (in characters and in UTF-16 units): mark "
            f"it again in {tool.name}"
        )
    return places[0]


def _letters(text: str) -> str:
    """A text without white space, which Label Studio merges or writes as the letters \\n."""
    return "".join(text.replace("\\n", " ").split())


def _label_studio(task: Row) -> Iterator[Submission]:
    row = {"id": task.get("id"), **task["data"]}
    annotations = task.get("annotations", task.get("completions"))  # the latter before version 1
    if not annotations:
        yield Submission(row, [], NOT_ANNOTATED)
    for annotation in annotations:
        spans = []
        for result in annotation.get("result") or []:
            spans += _region_spans(result.get("from_name", ""), result.get("value", {}))
        skipped = annotation.get("was_cancelled") or annotation.get("skipped")
        yield Submission(row, spans, "skipped" if skipped else "")


def _label_studio_row(row: Row) -> Iterator[Submission]:
    """A row of JSON-MIN or CSV: an annotation of a task, or a task without one, whose annotation_id is empty. A column
    holds what was marked for a control, or what was imported."""
    marked = {name: regions for name, value in row.items() if (regions := _regions(value))}
    spans = [span for name, regions in marked.items() for region in regions for span in _region_spans(name, region)]
    spans += _typed("answer", row.get("answer") if "answer" not in marked else None)
    annotated = row.get("annotation_id", "unknown")
    imported = {name: value for name, value in row.items() if name not in marked}
    # in CSV an imported column of a control's name is _data_NAME
    imported |= {name[6:]: value for name, value in row.items() if name.startswith("_data_")}
    yield Submission(imported, spans, NOT_ANNOTATED if is_missing(annotated) or annotated == "" else "")


def _regions(value: Any) -> list[Row]:
    """The regions of a cell of JSON-MIN or CSV; none of another cell."""
    cells = _listed(value)
    regions = [region for region in cells if isinstance(region, dict) and "start" in region]
    return [region for region in regions if any(str(name).endswith("labels") for name in region)]


def _listed(cell: Any) -> list[Any]:
    """A list, which a table of text holds as JSON or as Python prints it; none of another cell."""
    if isinstance(cell, str) and cell.startswith("["):
        with suppress(ValueError, SyntaxError, TypeError, RecursionError):
            cell = nested_value(cell)
    return cell if isinstance(cell, list) else []


def _region_spans(control: str, region: Row) -> list[Span]:
    """The span of each label of a region, or what was typed; none of another result."""
    if "start" not in region:
        return _typed(control, region.get("text"))
    labels = next((value for name, value in region.items() if name.endswith("labels")), None) or [""]
    return [_span(control, label, region["start"], region["end"], region.get("text")) for label in labels]


def _span(control: str, label: Any, start: Any, end: Any, text: Any = None) -> Span:
    return Span(str(label or ""), str(control), start, end, None if text is None else str(text))


def _typed(control: str, value: Any) -> list[Span]:
    """Answers that were typed: a text or texts of the control `answer`, since others may be comments."""
    texts = _listed(value) or [value]
    return [_span(control, "", None, None, text) for text in texts if control.lower() == "answer" and text]


def _prodigy(row: Row) -> Iterator[Submission]:
    """Its `answer` is a status."""
    imported = {**(row.get("meta") or {}), **row}
    left_out = PRODIGY_STATUSES[imported.pop("answer")]
    marks = row.get("spans") or []
    spans = [_span("", mark.get("label"), mark["start"], mark["end"], mark.get("text")) for mark in marks]
    yield Submission(imported, spans, left_out)


def _doccano(row: Row) -> Iterator[Submission]:
    """`label` has [start, end, label] or, in a project of sequence to sequence, typed answers."""
    spans = []
    for mark in next(row[name] for name in DOCCANO_SPANS if name in row):
        if isinstance(mark, str):
            spans += _typed("answer", mark)
        elif isinstance(mark, dict):
            spans.append(_span("", mark["label"], mark["start_offset"], mark["end_offset"]))
        else:
            start, end, label = mark
            spans.append(_span("", label, start, end))
    yield Submission({**(row.get("meta") or {}), **row}, spans)


def _argilla(row: Row) -> Iterator[Submission]:
    """Each of the data set's questions has a response of each user, and its status."""
    submissions = []
    for name in row:
        question = name.removesuffix(".responses")
        responses = _listed(row[name]) if question != name else []
        statuses = _listed(row[f"{name}.status"]) if responses else []
        for response, status in zip(responses, statuses, strict=True):
            marks = [mark for mark in _listed(response) if isinstance(mark, dict)]
            spans = [_span(question, mark.get("label"), mark["start"], mark["end"]) for mark in marks]
            if isinstance(response, str):
                spans = _typed(question, response)
            submissions.append(Submission(row, spans, "" if status == "submitted" else str(status)))
    yield from submissions or [Submission(row, [], NOT_ANNOTATED)]


LABEL_STUDIO = Tool("Label Studio", _label_studio, ("context", "text"), in_characters=True, in_utf16=True)  # now; once
LABEL_STUDIO_ROWS = LABEL_STUDIO._replace(read=_label_studio_row)
PRODIGY = Tool("Prodigy", _prodigy, ("text", "context"), in_characters=True)
DOCCANO = Tool("doccano", _doccano, ("text", "context"), in_utf16=True)
ARGILLA = Tool("Argilla", _argilla, ("context", "text"), in_utf16=True)
