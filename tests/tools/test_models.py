"""docs/models.md says of every architecture what `python -m tools.models` sees."""

import re

import pytest
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from tools.models.__main__ import main, try_models
from tools.models.making import is_generative
from tools.models.page import BEGIN, END, PAGE, is_refused, page_cell, reason_of
from tools.models.trial import GENERATED, SPANS

TEXT = PAGE.read_text(encoding="utf-8")
WRITTEN = TEXT.partition(BEGIN)[2].partition(END)[0]
NAME = re.compile(r"`([\w-]+)`")
TELLING = ("bert", "convbert", "splinter", "gpt2", "t5", "lxmert")


def page_rows() -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """The page's cells by architecture and column, and why others are refused."""
    rows, columns, refused = {}, [], {}
    for line in WRITTEN.splitlines():
        first, *cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if line.startswith("| `"):
            rows |= {name: dict(zip(columns, cells, strict=True)) for name in NAME.findall(first)}
        elif line.startswith("| ") and "---" not in line:
            columns = cells
        elif named := re.match(r"- ((?:`[\w-]+`(?:, )?)+): (.*)", line):
            refused |= dict.fromkeys(NAME.findall(named[1]), named[2])
    return rows, refused


def test_the_page_names_every_architecture_once_and_is_short():
    rows, refused = page_rows()
    everywhere = {*MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES, *MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES}
    assert sorted([*rows, *refused]) == sorted(everywhere)
    assert [name for name in everywhere if TEXT.count(f"`{name}`") != 1] == []
    assert len(TEXT.splitlines()) <= 45


@pytest.mark.slow
def test_telling_architectures_do_what_the_page_says():
    """Without the compiler, which takes half of the time."""
    rows, refused = page_rows()
    columns = [column for column in SPANS if column != "compile"]
    tried = dict(try_models(TELLING, columns))
    assert tried.keys() == {*TELLING}
    for name, cells in tried.items():
        if is_refused(cells):
            assert reason_of(cells["answers"]) == refused[name]
        else:
            offered = GENERATED if is_generative(name) else columns
            expected = {column: rows[name][column] for column in offered}
            assert {column: page_cell(cells[column]) for column in offered} == expected, name
    assert is_refused(tried["lxmert"])


def test_a_reason_is_what_was_said_without_the_fix_and_the_class():
    message = (
        "no: BigBirdForQuestionAnswering computes something else from ids, which (an error): use a model such as BERT"
    )
    assert reason_of(message) == "it computes something else from ids, which (an error)"
    assert page_cell(message) == "no: it computes something else from ids"
    wrong = "no: a fault: its loss is 0.04 away from that of transformers, which is at most 5.3"
    assert page_cell(wrong) == "no: a fault: its loss is not that of transformers"
    assert page_cell("yes, unpadded") == "yes, unpadded"
    assert is_refused({"answers": message, "trains": message})
    assert not is_refused({"answers": message, "trains": wrong})
    assert not is_refused({"answers": "yes", "trains": message})


@pytest.mark.parametrize("arguments", [["bert", "--write"], ["berd"]], ids=" ".join)
def test_bad_input_is_said_in_a_line(arguments, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["models", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert ("name none" if "--write" in arguments else "berd: no architecture") in capsys.readouterr().err
