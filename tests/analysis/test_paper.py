"""The paper's numbers, typed by hand from its tables, and how they are found."""

import numpy as np
import pytest

from swep_ds.analysis.paper import paper_score, paper_scores, plain, was_trained_on

SPOTS = (
    ("google-bert/bert-base-uncased", "MLE", "squad", (81.32, 88.62)),
    ("BERT-base", "SWEP", "amazon", (62.42, 76.84)),
    ("/models/bert-base-uncased", "adv_aug", "new_wiki", (77.29, 88.38)),
    ("google/electra-small-discriminator", "swep", "NYT", (75.18, 84.18)),
    ("ELECTRA-small", "SWEP", "amazon_reviews", (60.89, 74.06)),  # of the main table, not of the ablations
    ("ELECTRA-small", "SWEP, additive", "nyt", (73.87, 83.1)),
    ("ELECTRA-small", "without KL", "Amazon", (59.10, 72.74)),
    ("ELECTRA-small", "SWEP, no L_MLE", "bioasq", (37.89, 53.80)),
    ("google-t5/t5-small", "Gaussian-Dropout", "wiki", (72.56, 83.69)),
)


def test_numbers_are_the_papers():
    for model, method, data_set, both in SPOTS:
        assert paper_score(paper_scores(model), method, data_set) == [*both]
    for name, size in (("BERT-base", 48), ("ELECTRA-small", 48 + 6 * 3), ("T5-small", 48)):
        em, f1 = np.array([score for row in paper_scores(name).values() for score in row.values()]).T
        assert len(em) == size
        assert (em < f1).all()
    # sums of BERT-base's columns MLE and SWEP, added up by hand
    for method, total in (("MLE", 405.30), ("SWEP", 414.57)):
        assert sum(em for em, _ in paper_scores("BERT-base")[method].values()) == pytest.approx(total)


def test_what_the_paper_does_not_have():
    assert paper_scores("roberta-base") is None
    electra = paper_scores("ELECTRA-small")
    for method, data_set in (("SWEP, additive", "squad"), ("NEFTune", "squad"), ("SWEP", "hotpot")):
        assert paper_score(electra, method, data_set) is None
    assert paper_score(paper_scores("BERT-base"), "SWEP, no KL", "nyt") is None
    assert plain("模型 1") != plain("数据 1") != plain("1")  # names in other scripts stay apart


def test_what_the_papers_training_data_is_called():
    for name in ("rajpurkar/squad", "squad:plain_text@train", "data/SQuAD.train.jsonl.gz", "train-v1.1.json"):
        assert was_trained_on(name), name
    for name in ("train-v2.0.json", "squad_v2", "squadshifts:nyt", "data/new_wiki_v1.0.json"):
        assert not was_trained_on(name), name
