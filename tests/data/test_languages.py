"""XQuAD's layout, in scripts with and without spaces: read, cut into windows, decoded and scored."""

import pytest
import torch

from swep_ds.data.readers import read_examples
from swep_ds.data.windows import WindowSettings
from swep_ds.evaluation.predict import read_columns
from swep_ds.evaluation.scores import Scorer
from swep_ds.evaluation.spans import SpanDecoder, SpanSettings
from tests.support.decoded import best_texts
from tests.support.qa_files import save
from tests.support.tiny_windows import build

# by language: context, question, answer, title
TEXTS = {
    "zh": ("上海市在中国东部。1998年，上海开了咖啡馆。", "哪一年？", "1998", "咖啡"),
    "th": ("ร้านกาแฟเปิดในปี 1998 ที่กรุงเทพ", "เปิดเมื่อไร", "กรุงเทพ", "กาแฟ"),
    "ar": ("افتتح المقهى في عام 1998، وهو يقدم الشاي.", "متى؟", "الشاي", "مقهى"),
    "hi": ("यह कैफ़े 1998 में खुला। यहाँ चाय मिलती है।", "कब?", "चाय", "कैफ़े"),
    "el": ("Το καφενείο άνοιξε το 1998. Σερβίρει τσάι.", "Πότε;", "τσάι", "Καφενείο"),
}


def document(context: str, question: str, answer: str, title: str) -> dict:
    qas = [{"id": "5725b33f6a3fe71400b8952d", "question": question}]
    qas[0]["answers"] = [{"text": answer, "answer_start": context.index(answer)}]
    return {"version": "1.1", "data": [{"title": title, "paragraphs": [{"context": context, "qas": qas}]}]}


@pytest.mark.parametrize("language", TEXTS)
def test_an_answer_survives_windows_and_decoding(language, tmp_path):
    context, question, answer, _ = TEXTS[language]
    source = save(tmp_path, document(*TEXTS[language]), f"xquad.{language}.json")
    [example] = read_examples(source, training=True)
    assert (example.context, example.question, example.answers) == (context, question, (answer,))
    assert context[slice(*example.span)] == answer
    sizes = WindowSettings(72, 8, 24)
    _, rows = build([example], "byte_bpe", sizes, training=True)
    assert any(row["has_answer"] for row in rows)
    tests, cut = build([example], "byte_bpe", sizes)
    decoder = SpanDecoder([example], SpanSettings(20, 40))
    columns = read_columns(tests.dataset.with_format("arrow"), torch.arange(len(cut)).numpy())
    starts, ends = (torch.zeros(len(cut), max(row["length"] for row in cut)) for _ in range(2))
    for number, (row, label) in enumerate(zip(cut, rows, strict=True)):
        assert row["input_ids"] == label["input_ids"]
        if label["has_answer"]:
            starts[number, label["start_position"]] = ends[number, label["end_position"]] = 9.0
    decoder.add(columns, starts, ends)
    text = best_texts(decoder)[example.id]
    assert answer in text  # a byte-level token may reach beyond the answer
    assert len(text) <= len(answer) + 2
    rules = Scorer(language if language in ("ar", "hi", "zh") else None)
    assert rules.exact_match(answer, example.answers) == 1.0
