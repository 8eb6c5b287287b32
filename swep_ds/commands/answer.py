"""Answers one question, about one text or many, or a file of questions, with a saved model.

    swep-ds answer runs/quickstart-swep-seed0/model --question "Who ...?" --text "..."
    swep-ds answer MODEL --question "Who ...?" --text_file article.txt --n_best 3
    swep-ds answer MODEL --question "Who ...?" --texts articles
    swep-ds answer MODEL --questions asked.jsonl --output answers.jsonl --min_confidence 0.5
    swep-ds answer MODEL --questions asked.csv --texts articles --output answers.jsonl

MODEL is a Hugging Face folder or hub id, extractive or generative. The command prints the best answers to --question,
each with its probability among all spans of the text and the words around it. A generated answer has the probability of
its tokens. A model that was trained with unanswerable questions may find that there is no answer.
--texts takes a folder of texts and documents: .txt, .md, .pdf, .docx, .pptx, .odt, .html and .epub. BM25 ranks their
passages, the model reads the best ones, and each answer comes with the name of its text, its page and its heading.
--min_confidence declines a question whose best answer is less likely to be exactly right, by the calibrator if the
model has one, else by the softmax; with --texts by the probabilities of all answers that say the same.
--questions takes any source of data, such as JSON lines or CSV with the columns question and context; answers in it are
ignored, and with --texts contexts, too, which may be missing. --output has JSON lines, or rows if it is a .csv: id,
question, answer ("" = none), probability, confidence, start and end in the context, with --texts the text's name, page
and heading, and with --n_best above 1 the list `answers`. If it is stopped, the same command resumes.
"""

import json
import math
import time
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from swep_ds.commands.cli import Parser, add_reading_options, at_least
from swep_ds.common.console import Console, quiet
from swep_ds.common.errors import InputError, printable
from swep_ds.common.files import check_output, read_text, user_path
from swep_ds.data.example import Example
from swep_ds.texts.folder import FolderTexts

FIELDS = ("text", "score", "probability", "confidence", "start", "end")  # an answer's fields in --output


def answer() -> None:
    options = Parser(description=__doc__)
    options.add_argument("model", help="Hugging Face folder or hub id of a question-answering model")
    asked = options.add_mutually_exclusive_group(required=True)
    asked.add_argument("--question", help="one question, about --text, --text_file or --texts")
    asked.add_argument("--questions", metavar="SOURCE", help="file of questions, with contexts if without --texts")
    given = options.add_mutually_exclusive_group()
    given.add_argument("--text", help="the text that --question is about")
    given.add_argument("--text_file", type=user_path, help="file with that text")
    given.add_argument("--texts", metavar="FOLDER", type=user_path, help="folder of texts to ask")
    options.add_argument("--passages", type=at_least(1), help="passages of --texts to read (default: 10)")
    options.add_argument("--output", type=user_path, help="new file for the answers to --questions")
    add_reading_options(options, training=False)
    options.add_argument("--n_best", type=at_least(1), default=1, help="answers; a generative model has one")
    options.add_argument("--batch_size", type=at_least(1), default=32, help="windows in a forward pass")
    text = "decline a question whose null odds are above it (default: the model's; if it has none, never)"
    options.add_argument("--null_threshold", type=float, help=text)
    text = "decline if the best answer's confidence is lower"
    options.add_argument("--min_confidence", type=float, default=0.0, help=text)
    text = "tokens of the longest answer (default: the model's, or 30)"
    options.add_argument("--max_answer_tokens", type=at_least(1), help=text)
    arguments = options.parse_args()
    context = arguments.text
    if arguments.text_file:
        context = read_text(arguments.text_file, f"--text_file {arguments.text_file}")
    texts = None
    if arguments.texts:
        texts = FolderTexts(arguments.texts, f"--texts {arguments.texts}")
        arguments.passages = arguments.passages or 10
    elif arguments.passages:
        raise InputError("--passages are those of --texts: give it too, or leave them out")
    elif (arguments.question is None) != (context is None):
        raise InputError("give --question with --text, --text_file or --texts; --questions has texts in its file")
    if arguments.columns and arguments.questions is None:
        raise InputError("--columns are those of --questions: --question has none")
    if (arguments.questions is None) != (arguments.output is None):
        raise InputError("give --questions with --output, a new file for the answers; --question has none")
    check_output("--output", arguments.output)

    from swep_ds.api.answerer import QuestionAnswerer  # after the arguments: these imports take seconds

    with quiet():
        names = ("batch_size", "null_threshold", "min_confidence", "max_answer_tokens")
        kwargs = {name: getattr(arguments, name) for name in names}
        if arguments.questions is not None:
            _answer_file(arguments, texts, kwargs)
            return
        answerer = QuestionAnswerer(arguments.model, **kwargs)
        if texts is None:
            replies = answerer(arguments.question, context, arguments.n_best)
        else:
            replies = answerer.over(texts, arguments.passages)(arguments.question, arguments.n_best)
        for reply in replies:
            text = reply.text or "(no answer)"
            if reply.score is None and texts is not None:
                text = "no passage shares a word with the question"
            if reply.name is not None:
                context = texts[reply.name]
                text += f"    {reply.name}:"
            if reply.page is not None:
                text += f" page {reply.page}:"
            elif reply.heading is not None:
                text += f" {reply.heading}:"
            if reply.start is not None:
                text += f"    ...{context[max(0, reply.start - 40) : reply.end + 40]}...".replace("\n", " ")
            print(f"{reply.probability:6.1%}  {printable(text)}")
            if reply.confidence is not None and answerer.calibrated and texts is None:
                print(f"        confidence that the best answer is exactly right: {reply.confidence:.1%}")


def _answer_file(arguments: Namespace, texts: FolderTexts | None, kwargs: dict[str, Any]) -> None:
    import pandas as pd

    from swep_ds.api.answerer import QUESTIONS_AT_A_TIME, QuestionAnswerer
    from swep_ds.data.choices import Choices
    from swep_ds.data.chunks import Chunks, digest
    from swep_ds.data.readers import read_examples
    from swep_ds.models.folders import model_checksum
    from swep_ds.texts.answerer import QUESTIONS_OF_TEXTS_AT_A_TIME

    n_best = arguments.n_best
    choices = Choices(columns=arguments.columns)
    examples = read_examples(arguments.questions, training=False, choices=choices, labels=False)
    setup = {"model": arguments.model, "files": model_checksum(arguments.model, "model"), "n_best": n_best, **kwargs}
    setup["questions"] = digest(examples)
    fields, size = FIELDS, QUESTIONS_AT_A_TIME
    if texts is not None:
        fields, size = (*FIELDS, "name", "page", "heading"), QUESTIONS_OF_TEXTS_AT_A_TIME
    elif without := [example.id for example in examples if not example.context]:
        raise InputError(f"question {without[0]!r}: context is empty: give it, or --texts")
    chunks = Chunks(arguments.output, math.ceil(len(examples) / size))
    answerer = QuestionAnswerer(arguments.model, **kwargs)
    asks = None
    if texts is None:
        answerer.check(examples, n_best)
    else:
        answerer.check([], n_best)  # passages are checked as they are read
        asks = answerer.over(texts, arguments.passages)
        setup |= {"passages": arguments.passages, "texts": asks.index.checksum}

    def ask(asked: list[Example]) -> Iterator[dict[str, Any]]:
        if asks:
            replied = asks.answer((example.question for example in asked), n_best)
        else:
            replied = answerer.answer_together(asked, n_best)
        for example, replies in zip(asked, replied, strict=True):
            answers = [{name: getattr(reply, name) for name in fields} for reply in replies]
            line = {"id": example.id, "question": example.question, "answer": replies[0].text}
            line |= {name: answers[0][name] for name in fields if name not in ("text", "score")}
            if n_best > 1:
                line["answers"] = answers
            yield line

    began = time.monotonic()
    count = chunks.fill(setup, examples, size, ask)
    if arguments.output.suffix.lower() == ".csv":
        table = pd.DataFrame(chunks.lines(), dtype=object)  # else whole numbers beside gaps become fractions
        if n_best > 1:
            table["answers"] = table["answers"].map(json.dumps)
        chunks.finish(["\ufeff" + table.to_csv(index=False, lineterminator="\r\n")])  # Excel needs the mark
    else:
        chunks.finish(json.dumps(line, ensure_ascii=False) + "\n" for line in chunks.lines())
    rate = 60 * count / (time.monotonic() - began)
    Console().print(f"{len(examples)} answers in {arguments.output}: {rate:,.0f} questions a minute")
