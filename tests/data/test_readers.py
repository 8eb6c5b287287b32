import functools
import gzip
import json
import math
from pathlib import Path
from unittest import mock

import datasets
import pyarrow as pa
import pytest

from swep_ds.data.example import Example
from swep_ds.data.places import mrqa_place
from swep_ds.data.readers import read_examples
from tests.support import bad_input, qa_files
from tests.support.qa_files import file, lines, parquet, refused, stream

CONTEXT = "\U0001f600 The caf\u00e9 opened in 1998.\nIt serves tea."
WHEN = {"id": "q1", "question": "When?", "answers": [{"text": "1998", "answer_start": 21}]}
SERVED = [{"text": "tea", "answer_start": 37}, {"text": "It serves tea", "answer_start": 27}]
WHAT = {"id": "q2", "question": "What is served?", "answers": SERVED}
EXAMPLES = [
    Example("q1", "When?", CONTEXT, ("1998",), (21, 25), "Cafes"),
    Example("q2", "What is served?", CONTEXT, ("tea", "It serves tea"), (37, 40), "Cafes"),
]
squad, rows = (functools.partial(make, context=CONTEXT) for make in (qa_files.squad, qa_files.rows))


def table(*qas):
    return pa.Table.from_pylist(rows(*qas))


LAYOUTS = {
    "squad": lambda *qas: json.dumps(squad(*qas)).encode(),
    "squad, indented": lambda *qas: json.dumps(squad(*qas), indent=1, ensure_ascii=False).encode("utf-8-sig"),
    "JSON lines": lambda *qas: lines(rows(*qas)).encode(),
    "JSON list": lambda *qas: json.dumps(rows(*qas), indent=2).encode(),
    "Parquet": lambda *qas: parquet(table(*qas)),
    "Arrow stream": lambda *qas: stream(table(*qas)),
    "Arrow file": lambda *qas: file(table(*qas)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_examples(save, layout):
    for compress in (bytes, gzip.compress):
        source = save(compress(LAYOUTS[layout](WHEN, WHAT)), "named.csv")
        assert read_examples(source, training=True) == EXAMPLES
        without_span = [Example(e.id, e.question, e.context, e.answers, None, e.article) for e in EXAMPLES]
        assert read_examples(source, training=False) == without_span


@pytest.mark.parametrize("layout", ["squad", "JSON lines", "JSON list", "Parquet"])
def test_missing_ids_are_made_up_from_the_place_in_the_file(save, layout):
    """And from the file's name, not its folder: the same data has the same ids in any folder."""
    source = save(LAYOUTS[layout](WHEN | {"id": None}, WHAT | {"id": None}))
    ids = [example.id for example in read_examples(source, training=True)]
    expected = {"squad": ["data-0.0.0", "data-0.0.1"], "JSON lines": ["data-1", "data-2"]}
    assert ids == expected.get(layout, ["data-0", "data-1"])


def test_articles_are_titles_or_else_what_questions_share(save):
    other = squad(WHEN | {"id": "q3"}, context=CONTEXT + " And cake.")
    untitled = squad(WHEN)["data"] + squad(WHAT)["data"] + other["data"]
    for article in untitled:
        del article["title"]
    first, second, third = (example.article for example in read_examples(save({"data": untitled}), training=False))
    assert first == second != third  # the first two have one context
    both = [{"paragraphs": [*other["data"][0]["paragraphs"], *squad(WHAT)["data"][0]["paragraphs"]]}]
    articles = [e.article for e in read_examples(save({"data": [untitled[0], *both]}), training=False)]
    assert len(articles) == 3
    assert articles[1] == articles[2] != articles[0]  # `splits` keeps articles that share a later context together
    # pandas' factorize numbers articles, from 0
    for title, article in ((0, "0"), (7, "7"), ("", CONTEXT), (None, CONTEXT), (math.nan, CONTEXT)):
        [example] = read_examples(save([row | {"title": title} for row in rows(WHEN)]), training=False)
        assert example.article == article


MRQA_CONTEXT = "[PAR] [TLE] Caf\u00e9 [SEP] It opened in 19 98 . [DOC] It serves Green  tea ."


def mrqa(**changes):
    tea = MRQA_CONTEXT.index("Green")
    first = {"text": "green tea", "char_spans": [[tea, tea + 9], [0, 4]], "token_spans": [[1, 2]]}
    qa = {"qid": "m1", "id": "not this one", "question": "What is served?", "answers": ["Green tea", "tea"]}
    qa["detected_answers"] = [first, {"text": "19 98", "char_spans": [[0, 1]]}]
    row = {"context": MRQA_CONTEXT, "context_tokens": [], "qas": [qa | changes]}
    return lines([{"header": {"dataset": "BioASQ", "split": "dev"}}, row])


def test_mrqa_markers_become_blanks_and_offsets_hold(save):
    (example,) = read_examples(save(gzip.compress(mrqa().encode())), training=True)
    assert (example.id, example.question, example.answers) == ("m1", "What is served?", ("Green tea", "tea"))
    assert len(example.context) == len(MRQA_CONTEXT)
    assert " ".join(example.context.split()) == "Caf\u00e9 It opened in 19 98 . It serves Green tea ."
    assert example.context[slice(*example.span)] == "Green  tea"  # the last offset of MRQA is part of the answer
    (example,) = read_examples(save(mrqa(detected_answers=[])), training=False)
    assert example.span is None
    (example,) = read_examples(save(squad(WHEN, context=f"{CONTEXT} [SEP]")), training=True)
    assert example.context == f"{CONTEXT} [SEP]"  # in other files it is text


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("annual boat race", "The annual boat race"),  # an article less
        ("Black earth (terra preta", "Black earth (terra preta)"),
        ("autosomal-dominant", "autosomal dominant"),  # as one word, and as two
        ("19 98", "1998"),  # tokens with blanks between them
        ("A", "a"),  # an article and nothing else: compared without normalisation
        ("?!", "? !"),
    ],
)
def test_articles_punctuation_case_and_white_space_make_no_other_answer(written, text):
    context = f"It is {written} and more"
    detected = [{"text": text, "char_spans": [[6, 5 + len(written)]]}]
    assert context[slice(*mrqa_place(context, detected)[:2])] == written  # as the file has it
    from_the_end = [place - len(context) for place in (6, 5 + len(written))]
    said = bad_input.refused(mrqa_place, context, [detected[0] | {"char_spans": [from_the_end]}])
    assert f"is not at char_spans {from_the_end} of its context, which has '' there" in said
    for other in ("", "!", "another text", text + "s"):
        said = bad_input.refused(mrqa_place, context, [detected[0] | {"text": other}])
        assert f"is not at char_spans [6, {5 + len(written)}] of its context" in said


def test_a_folders_files_are_read_in_name_order_or_told_apart_by_the_splits_that_they_name(save, tmp_path):
    assert "no data file in this folder" in refused(str(tmp_path))
    save("not data", "README.md")
    save("not data", ".hidden.json")
    plain = Path(save(LAYOUTS["Parquet"](WHAT), "plain.parquet"))
    read = functools.partial(read_examples, str(tmp_path))
    assert [e.id for e in read(training=True)] == ["q2"]
    plain.rename(tmp_path / "validation-00000-of-00001.parquet")
    assert [e.id for e in read(training=True)] == ["q2"]  # a folder of one split is that split
    save(LAYOUTS["Parquet"](WHEN), "train-00001-of-00002.parquet")
    save(gzip.compress(LAYOUTS["squad"](WHEN | {"id": "q3"})), "train-00000-of-00002.json.gz")
    assert [e.id for e in read(training=True)] == ["q3", "q1"]
    assert [e.id for e in read(training=False)] == ["q2"]
    save(LAYOUTS["JSON lines"](WHEN), "train.jsonl")
    assert (
        "question ids that occur more than once: 1 ('q1'): make every id unique, or set data.columns.id to null"
        in refused(str(tmp_path))
    )
    save(LAYOUTS["squad"](WHEN | {"id": "q4"}), "trainers.json")
    assert "some files name a split and trainers.json does not" in refused(str(tmp_path))


def test_folder_saved_by_datasets(tmp_path):
    def saved(data, name: str, **options) -> str:
        data.save_to_disk(tmp_path / name, **options)
        return str(tmp_path / name)

    when, what = datasets.Dataset.from_list(rows(WHEN)), datasets.Dataset.from_list(rows(WHAT))
    shards = saved(datasets.concatenate_datasets([when, what]), "one", num_shards=2)
    assert read_examples(shards, training=True) == EXAMPLES
    two = saved(datasets.DatasetDict(train=when, test=what), "two")
    assert [read_examples(two, training=training)[0].id for training in (True, False)] == ["q1", "q2"]
    three = saved(datasets.DatasetDict(train=when, test=what, validation=when), "three")
    assert [read_examples(three + part, training=False)[0].id for part in ("", "/test")] == ["q1", "q2"]
    assert "has no split train, only dev" in refused(saved(datasets.DatasetDict(dev=when), "four"))


def test_hub_id_splits_and_configs(monkeypatch):
    whole = datasets.DatasetDict(validation=datasets.Dataset.from_list(rows(WHEN)))
    load = mock.Mock(side_effect=[whole, datasets.Dataset.from_list(rows(WHAT)), whole])
    monkeypatch.setattr(datasets, "load_dataset", load)
    assert read_examples("owner/name", training=False)[0].id == "q1"
    assert read_examples("owner/name:plain_text@train[:10%]", training=True)[0].id == "q2"
    asked = [mock.call("owner/name", None, split=None), mock.call("owner/name", "plain_text", split="train[:10%]")]
    assert load.call_args_list == asked
    assert "has no split train, only validation" in refused("owner/name")


def test_sources_that_do_not_exist_and_a_hub_out_of_reach(monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    assert read_examples("quickstart:news", training=False) == read_examples("quickstart:news.test", training=False)
    for source in ("quickstart:nowhere", "quickstart:news"):
        assert f"{source}: there is no quick-start corpus n" in refused(source)
    message = refused("swep-ds-tests/no-such-data-set")
    assert "Couldn't reach" in message
    assert "name its local file or folder instead" in message
    for source in ("missing.json", "data/missing.json", "./owner/name", "owner/name/more", "missing"):
        assert f"no such file or folder in {Path.cwd()}; name a local file" in refused(source)


def test_tables_of_many_rows(save):
    """More than are converted at a time; they share one copy of their context."""
    ids = [f"q{i}" for i in range(300)]
    for write in (qa_files.compressed, parquet):
        examples = read_examples(save(write(table(*(WHEN | {"id": name} for name in ids)))), training=True)
        assert [example.id for example in examples] == ids
        assert len({id(example.context) for example in examples}) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (" \n", "is empty; fetch it again"),
        ("text", "holds neither JSON nor Parquet, Arrow or CSV (whose first line names"),
        ('{"data": []}', "holds no questions"),
        ('{\n  "data": [\n    {"paragraphs": ]\n}', "not JSON (Expecting value: line 3 column 20"),
        (lines(rows(WHEN)) + '\n{"id": "q2", "question"\n' + lines(rows(WHAT)), "line 3 is not JSON (Expecting ':'"),
        (json.dumps(squad(WHEN)) + "\n{}", "line 1: has no column question, context, answers (found: ["),
        (gzip.compress(b"{}" * 99, mtime=0)[:-12], "damaged gzip file"),
        (parquet(table(WHEN))[:-40], "damaged data file"),
        (stream(table(WHEN))[:-8], "damaged data file (it is cut off)"),  # between batches: to Arrow's reader, its end
        (mrqa(detected_answers=[]), "question 'm1': no detected_answers"),
        # the contexts of mrqa-workshop/mrqa have markers
        (rows(WHEN | {"detected_answers": ["1998"]}), "row 0: has MRQA's column detected_answers"),
        (squad(WHEN, context=" \n"), "question 'q1': context is empty"),
        (squad({"question": "When?"}), "question 'data-0.0.0': field 'answers' is missing"),
        (squad(WHEN | {"question": "\u200b \t"}), "question 'q1': question is empty"),
        (squad(WHEN | {"answers": [{"answer_start": 5}]}), "question 'q1': field 'text' is missing"),
        ([{"question": "Is it?", "context": "True", "answer": True}], "the answer True is not text; give a string"),
        ({"data": None}, "field 'data' is None; expected a list"),
        ({"data": [{"paragraphs": {}}]}, "data[0].paragraphs[0]: field 'context' is missing"),
        ({"data": [{"paragraphs": [None]}]}, "data[0].paragraphs[0]: expected an object with fields such as context"),
    ],
)
def test_bad_files_and_questions_are_named_in_one_line(save, content, message):
    assert message in refused(save(content))


def test_all_faulty_questions_of_a_file_are_named_at_once(save):
    """Such as those of data whose white space was changed after its offsets were computed."""
    moved = [{"text": "1998", "answer_start": 18}]
    asked = [WHEN | {"id": f"q{i}", "answers": moved if i in (2, 5, 6) else WHEN["answers"]} for i in range(8)]
    source = save(squad(*asked))
    message = refused(source)
    assert "question 'q2': the answer '1998' is not at " in message
    assert message.endswith("; 2 more of this file's questions have faults: 'q5', 'q6'")
    assert len(read_examples(source, training=False)) == 8  # evaluation needs no offsets
