"""SSMBA's corruption of a text, and how predicted tokens return to the text.

After Ng, Cho, Ghassemi: "SSMBA: Self-Supervised Manifold Based Data Augmentation for Improving Out-of-Domain
Robustness", EMNLP 2020: a share of the tokens is selected; of these 80 % are masked, 10 % replaced by a random token
and 10 % left unchanged; a masked language model then predicts all of them, as BERT learned to. (The published code
leaves the last 10 % out of the prediction.)

Notable:
- Predictions are spliced into the ORIGINAL text by character offsets, so all text that was not corrupted, or came back
  unchanged, keeps every byte: case, accents, white space. Decoding all tokens would lose them.
- The tokenizer's own decoder, run on a token after another one, shows how the token reads and whether it takes a space
  before it. So WordPiece's `##` and the leading space of byte-level BPE and SentencePiece are not special cases.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from swep_ds.data.tokens import TextTokens

MASKED, RANDOM = 0.8, 0.1  # shares of the selected tokens; the rest is unchanged (Devlin et al., NAACL 2019)
_NEVER_TRAINED = re.compile(r"\[unused\d+\]")  # spare entries of BERT's vocabularies


@dataclass(frozen=True)
class Vocabulary:
    """How every token id reads in a text. V ids.

    texts: V strings, without white space around them.
    spaced: [V] bool, whether the tokenizer's decoder puts a space before the token.
    candidates: int64 ids that may be written into a text: no special, added or never trained token, and no part of a
        character, which reads as nothing.
    closed: int64 ids of special tokens that a text may spell out ("[SEP]"), without the unknown token.
    """

    texts: list[str]
    spaced: np.ndarray
    candidates: np.ndarray
    closed: np.ndarray
    mask_id: int

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast) -> "Vocabulary":
        backend = tokenizer.backend_tokenizer
        mask = tokenizer.mask_token_id
        before = backend.decode([mask], skip_special_tokens=False)
        vocabulary = tokenizer.get_vocab()
        pairs = [[mask, token] for token in range(max(vocabulary.values()) + 1)]
        decoded = [pair.removeprefix(before) for pair in backend.decode_batch(pairs, skip_special_tokens=False)]
        texts = [text.strip() for text in decoded]
        barred = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
        barred |= {token for text, token in vocabulary.items() if _NEVER_TRAINED.fullmatch(text)}
        candidates = [
            token
            for token, text in enumerate(texts)
            if token not in barred and text and text.isprintable() and "\ufffd" not in text
        ]
        return cls(
            texts=texts,
            spaced=np.array([text[:1].isspace() for text in decoded]),
            candidates=np.array(candidates, np.int64),
            closed=np.array(sorted({*tokenizer.all_special_ids} - {tokenizer.unk_token_id}), np.int64),
            mask_id=mask,
        )


@dataclass(frozen=True)
class Text:
    """A text of T tokens.

    ids: [T] int64.
    starts, ends: [T] int64, a token's characters [start, end) without white space around them.
    eligible: [T] bool, whether a token may be corrupted.
    answer: its characters [start, end); None for a question.
    """

    text: str
    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    eligible: np.ndarray
    answer: tuple[int, int] | None


def tokenise(
    backend: Tokenizer,
    vocabulary: Vocabulary,
    texts: Sequence[str],
    answers: Sequence[tuple[int, int] | None],
    *,
    protected: bool = True,
) -> list[Text]:
    """Tokens without special ones around them, and which of them may be corrupted.

    A token is not eligible if it is white space, shares a character with another token (bytes of one character), is a
    special token, which a Unigram model finds where a text spells it out, or, with `protected`, overlaps the answer.
    """
    tokenised = []
    for text, span, encoding in zip(texts, answers, backend.encode_batch(texts, add_special_tokens=False), strict=True):
        ids = np.array(encoding.ids, np.int64)
        tokens = TextTokens.of(encoding, text)
        trimmed = [_trimmed(text, *offset) for offset in zip(tokens.starts, tokens.ends, strict=True)]
        offsets = np.array(trimmed, np.int64).reshape(-1, 2)
        starts, ends = offsets.T
        eligible = (starts < ends) & ~np.isin(ids, vocabulary.closed)
        shared = starts[1:] < ends[:-1]
        eligible[1:] &= ~shared
        eligible[:-1] &= ~shared
        if protected and span is not None:
            eligible &= (ends <= span[0]) | (starts >= span[1])
        tokenised.append(Text(text, ids, starts, ends, eligible, span))
    return tokenised


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    piece = text[start:end]
    start += len(piece) - len(piece.lstrip())
    return start, start + len(piece.strip())


@dataclass(frozen=True)
class Corruption:
    """What a masked language model is to reconstruct. T tokens, S of them selected.

    ids: [T] int64, corrupted.
    selected: [S] int64, ascending positions.
    uniforms: [S] float64 in [0, 1), one for the draw of each selected token.
    """

    ids: np.ndarray
    selected: np.ndarray
    uniforms: np.ndarray


def corrupt(
    ids: np.ndarray, eligible: np.ndarray, share: float, vocabulary: Vocabulary, rng: np.random.Generator
) -> Corruption:
    """Selects tokens, `share` of the eligible ones in expectation, and corrupts them."""
    count = int(share * eligible.sum() + rng.random())
    selected = np.sort(rng.choice(np.flatnonzero(eligible), count, replace=False))
    fate = rng.random(count)
    other = np.where(fate < MASKED + RANDOM, rng.choice(vocabulary.candidates, count), ids[selected])
    corrupted = ids.copy()
    corrupted[selected] = np.where(fate < MASKED, vocabulary.mask_id, other)
    return Corruption(corrupted, selected, rng.random(count))


def splice(text: Text, positions: np.ndarray, predicted: np.ndarray, vocabulary: Vocabulary) -> tuple[str, int]:
    """Puts the ids `predicted` [S] at ascending `positions` [S].

    A token that came back unchanged keeps its spelling. The text between tokens does not change, except:
      - a space is added before a token that begins a word if the replaced token did not (`##ing` -> `cat`), and where
        the decoder sees two words that would otherwise become one ("well-known" -> "well and known");
      - the space before a token that continues a word is dropped if the replaced token began one (`cat` -> `##s`);
      - the answer stays a word: the space after it is never dropped, and one is added where a token next to it becomes
        one that would make a word with it ("1204," -> "1204 s").

    Returns:
        The new text and the character where the answer begins in it, or would begin if none of it was replaced.
    """
    start = text.answer[0] if text.answer else 0
    changed = predicted != text.ids[positions]
    replacements = dict(zip(positions[changed].tolist(), predicted[changed].tolist(), strict=True))
    parts: list[str] = []
    done = 0  # characters of the text that `parts` replaces
    for position, token in replacements.items():
        begin, end = int(text.starts[position]), int(text.ends[position])
        piece = vocabulary.texts[token]
        spaced = vocabulary.spaced[token]
        was_spaced = vocabulary.spaced[text.ids[position]]
        cut = begin
        before = parts[-1][-1] if parts and done == begin else text.text[max(begin - 1, 0) : begin]
        if before.isspace():
            after_answer = text.answer and text.answer[0] < begin <= text.answer[1] + 1
            if was_spaced and not spaced and not after_answer:
                cut -= 1
        elif before:
            stands_apart = spaced or (text.answer and begin == text.answer[1])
            if (spaced and not was_spaced) or (stands_apart and _one_word(before, piece)):
                piece = " " + piece
        following = position + 1
        if following not in replacements and _one_word(piece, text.text[end : end + 1]):
            next_word = following < len(text.ids) and vocabulary.spaced[text.ids[following]]
            if next_word or (text.answer and end == text.answer[0]):
                piece += " "
        parts += [text.text[done:cut], piece]
        done = end
        if text.answer and end <= text.answer[0]:
            start += len(piece) - (end - cut)
    return "".join(parts) + text.text[done:], start


def _one_word(left: str, right: str) -> bool:
    """Whether two texts side by side would read as one word."""
    return left[-1:].isalnum() and right[:1].isalnum()
