"""Answers that a model can never give: they are too long for it, or its tokenizer cannot write them."""

from collections.abc import Sequence

from swep_ds.common.errors import excerpt
from swep_ds.data.features import Features
from swep_ds.evaluation.scores import Scorer


def unreachable(
    features: Features, golds: Sequence[Sequence[str]], scorer: Scorer, limit: int, option: str
) -> list[str]:
    """Sentences about the questions that cannot be answered right, if there are any. `golds` are the accepted answers
    to each question of `features`. The user sets `limit`, the most tokens of an answer, by `option`."""
    said = []
    long = [tokens for tokens in features.answer_tokens if tokens > limit]
    if long:
        said.append(
            f"{len(long)} of {features.examples} questions have only answers of more than {limit} tokens, which are "
            f"never given: raise {option}, up to {max(long)} for the longest"
        )
    unwritable = []
    for answers in golds:
        # most answers come back as they are, and need no scoring
        if answers and all(answer in features.rewritten for answer in answers):
            written = [features.rewritten[answer] for answer in answers]
            if not any(scorer.exact_match(text, answers) for text in written):
                unwritable.append((answers[0], written[0]))
    if unwritable:
        answer, text = min(unwritable, key=lambda pair: len(pair[0]))
        said.append(
            f"{len(unwritable)} of {features.examples} questions have only answers that the model's tokenizer cannot "
            f"write, such as {excerpt(answer)}, which comes back as {excerpt(text)}: name a model whose tokenizer "
            "writes every character, such as BART, or an extractive one"
        )
    return said
