"""Questions over many texts: searched, read with a tiny model and compared, all together."""

import random
from pathlib import Path

SIZES = (128, 512)
LARGE = (512, 2_048)
UNIT = "questions over 500 texts of 300 words"
BASELINE = "bm25s, and a bare transformers script that batches the same passages by length"
TEXTS = 500
PASSAGES = 10
BATCH = 32


def prepare(size: int, folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForQuestionAnswering

    from swep_ds.data.quickstart import ENCODER
    from swep_ds.models.hub import load_tokenizer

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(ENCODER)
    config.update({"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 1})
    AutoModelForQuestionAnswering.from_config(config).save_pretrained(folder / "model")
    load_tokenizer("quickstart:encoder").save_pretrained(folder / "model")


def texts() -> dict[str, str]:
    draw = random.Random(0)
    return {f"{number}.txt": " ".join(draw.choices(words(), k=300)) for number in range(TEXTS)}


def words() -> list[str]:
    syllables = ("ba", "do", "fi", "ge", "ku", "la", "mo", "ni", "re", "ta")
    return [first + second + third for first in syllables for second in syllables for third in syllables]


def questions(size: int) -> list[str]:
    draw = random.Random(1)
    return [" ".join(draw.choices(words(), k=8)) for _ in range(size)]


def warm_up(folder: Path) -> None:
    import torch
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer  # noqa: F401

    import swep_ds.api.answerer  # noqa: F401

    torch.set_num_threads(1)


def ours(size: int, folder: Path) -> None:
    from swep_ds.api.answerer import QuestionAnswerer

    asks = QuestionAnswerer(folder / "model", null_threshold=0.0, batch_size=BATCH).over(texts(), PASSAGES)
    assert len(list(asks.answer(questions(size)))) == size


def baseline(size: int, folder: Path) -> None:
    """The best span of each passage, by the best start and the best end alone."""
    import bm25s
    import torch
    from transformers import AutoModelForQuestionAnswering, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    model = AutoModelForQuestionAnswering.from_pretrained(folder / "model").eval()
    passages = []
    for text in texts().values():
        split = text.split()
        passages += [split[first : first + 100] for first in range(0, len(split) - 50, 50)]
    index = bm25s.BM25()
    index.index(passages, show_progress=False)
    asked, read = [], []
    for question in questions(size):
        scores = index.get_scores(question.split())
        for number in scores.argsort()[::-1][:PASSAGES]:
            asked.append(question)
            read.append(" ".join(passages[number]))
    encoded = tokenizer(
        asked,
        read,
        truncation="only_second",
        max_length=256,
        stride=128,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    order = sorted(range(len(encoded["input_ids"])), key=lambda row: -len(encoded["input_ids"][row]))
    best = {}
    with torch.no_grad():
        for first in range(0, len(order), BATCH):
            rows = order[first : first + BATCH]
            batch = tokenizer.pad({"input_ids": [encoded["input_ids"][row] for row in rows]}, return_tensors="pt")
            output = model(**batch)
            starts, ends = output.start_logits.max(-1), output.end_logits.max(-1)
            for row, score in zip(rows, (starts.values + ends.values).tolist(), strict=True):
                number = encoded["overflow_to_sample_mapping"][row]
                best[number] = max(best.get(number, score), score)
    assert len(best) == len(asked)
