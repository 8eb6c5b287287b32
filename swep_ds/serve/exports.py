"""What verdicts are exported to: each file is training data for this package, too."""

import json
from collections.abc import Collection
from typing import Any

import pandas as pd

from swep_ds.analysis.labelled import NO_ANSWER

Rows = Collection[dict[str, Any]]  # rows of `verdicts.row_of`, with their ids
COLUMNS = ["id", "question", "title", "context", "answer", "answer_start", "stratum"]


def squad(rows: Rows) -> str:
    """SQuAD v2.0."""
    questions_of: dict[str, dict[str, list[Any]]] = {}  # by title and context
    for row in rows:
        answers = [{"text": text, "answer_start": start} for text, start in _spans(row)]
        question = {name: row[name] for name in ("id", "question", "is_impossible")} | {"answers": answers}
        questions_of.setdefault(row["title"], {}).setdefault(row["context"], []).append(question)
    articles = []
    for title, of_title in questions_of.items():
        paragraphs = [{"context": context, "qas": questions} for context, questions in of_title.items()]
        articles.append({"title": title, "paragraphs": paragraphs})
    return json.dumps({"version": "v2.0", "data": articles}, ensure_ascii=False)


def _spans(row: dict[str, Any]) -> list[tuple[str, int]]:
    return list(zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True))


def table(rows: Rows) -> str:
    """CSV that a spreadsheet opens, and that `forecast --labelled` reads where questions were labelled in contexts of
    their own. All that people marked in one context for a question is in its row, several as lists in JSON."""
    questions: dict[str, dict[str, list[dict[str, Any]]]] = {}  # by id and context the rows
    for row in rows:
        questions.setdefault(row.get("asked", row["id"]), {}).setdefault(row["context"], []).append(row)
    lines = []
    for id_, of_question in questions.items():
        for marked in of_question.values():
            spans = dict.fromkeys(span for row in marked for span in _spans(row)) or [(NO_ANSWER, None)]
            texts, starts = zip(*spans, strict=True)
            line = {name: marked[0].get(name) for name in COLUMNS} | {"answer": texts[0], "answer_start": starts[0]}
            if len(texts) > 1:
                line |= {"answer": json.dumps(texts, ensure_ascii=False), "answer_start": json.dumps(starts)}
            lines.append(line)
        lines[-len(of_question)]["id"] = id_  # the others keep that of their verdict
    frame = pd.DataFrame(lines, columns=COLUMNS, dtype=object)
    if frame["stratum"].isna().all():
        del frame["stratum"]
    return "\ufeff" + frame.to_csv(index=False)  # Excel needs the mark


def label_studio(rows: Rows) -> str:
    """Tasks with their annotations, and the model's answers as predictions. The project's configuration names an object
    `text` of `$context` and labels `answer` with the label Answer."""
    tasks = []
    for row in rows:
        task = {"data": {name: row[name] for name in ("id", "question", "title", "context")}}
        task["annotations"] = [{"result": [_region(text, start) for text, start in _spans(row)]}]
        if said := row.get("said"):
            regions = []
            if said["start"] is not None:
                regions.append(_region(said["answer"], said["start"]))
            task["predictions"] = [{"score": said["confidence"], "result": regions}]
        tasks.append(task)
    return json.dumps(tasks, ensure_ascii=False)


def _region(text: str, start: int) -> dict[str, Any]:
    value = {"start": start, "end": start + len(text), "text": text, "labels": ["Answer"]}
    return {"from_name": "answer", "to_name": "text", "type": "labels", "value": value}


EXPORTS = {"squad.json": squad, "pairs.csv": table, "label-studio.json": label_studio}
