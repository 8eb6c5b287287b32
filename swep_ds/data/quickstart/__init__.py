"""The quick start's corpora, in corpora/<domain>.<split>.json.gz: QA with a domain shift, as in the paper.

Training and test text share no invented name, so nothing can be answered from memory. A passage states the same
relations of several things, so only relation and entity together answer a question. `ENCODER` is a small pretrained
BERT to start from, `T5` a small pretrained T5. `tools/quickstart` makes all three.
"""

import gzip
import json
from pathlib import Path
from typing import Literal

from swep_ds.common.errors import InputError

SOURCE = "encyclopedia"
DOMAINS = (SOURCE, "news", "forum", "reviews", "biomedicine")
CORPORA = Path(__file__).parent / "corpora"
ENCODER = Path(__file__).parent / "encoder"
T5 = Path(__file__).parent / "t5"
ARTICLES = {"train": 1800, "test": 120}  # those of a file that follow come only with unanswerable questions


def corpus(domain: str, split: Literal["train", "test"], unanswerable: bool = False) -> dict:
    """The corpus of one of `DOMAINS` in SQuAD's layout: about 7,000 questions for training, only of the source, and 450
    for a test. With `unanswerable` each passage has one more question, which it does not answer, and there are more
    passages, of at most two sentences. Raises InputError: there is no such domain, or no such split of it.
    """
    if domain not in DOMAINS or split not in ARTICLES or (split == "train" and domain != SOURCE):
        raise InputError(
            f"there is no quick-start corpus {domain}.{split}: name one of {', '.join(DOMAINS)} for "
            f"evaluation, {SOURCE} for training"
        )
    document = json.loads(gzip.decompress((CORPORA / f"{domain}.{split}.json.gz").read_bytes()))
    if unanswerable:
        return document
    articles = document["data"][: ARTICLES[split]]
    for article in articles:
        for paragraph in article["paragraphs"]:
            paragraph["qas"] = [question for question in paragraph["qas"] if question["answers"]]
    return {"version": "swep-ds quickstart 1", "data": articles}
