"""SSMBA's corruption of a text, and how predicted tokens return to it (Ng, Cho, Ghassemi, EMNLP 2020).

Of the selected tokens 80 % are masked, 10 % replaced by a random token and 10 % left unchanged; a masked language model
predicts all of them, as BERT learned to. (The published code leaves the last 10 % out of the prediction.)

Predictions are spliced into the ORIGINAL text by character offsets, so all other text keeps every byte: case, accents,
white space. The tokenizer's own decoder shows how a token reads and whether it takes a space before it, so WordPiece's
`##` and the leading space of byte-level BPE and SentencePiece are not special cases.
"""

import re
from dataclasses import dataclass

import numpy as np
from tokenizers import Encoding
from transformers import PreTrainedTokenizerFast

from swep_ds.data.windows import TextTokens

MASKED, RANDOM = 0.8, 0.1  # shares of the selected tokens; the rest is unchanged (Devlin et al., NAACL 2019)


class Vocabulary:
    """How each token id reads in a text: `texts`, without white space around them, and whether the tokenizer's decoder
    puts a space before them (`spaced`, bool). `candidates` are the ids that may be written into a text: no special,
    added or never trained token, and no part of a character, which reads as nothing."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        backend = tokenizer.backend_tokenizer
        ids = tokenizer.get_vocab()
        self.mask_id = tokenizer.mask_token_id
        mask = backend.decode([self.mask_id], skip_special_tokens=False)
        pairs = [[self.mask_id, token] for token in range(max(ids.values()) + 1)]
        decoded = [pair.removeprefix(mask) for pair in backend.decode_batch(pairs, skip_special_tokens=False)]
        self.texts = [text.strip() for text in decoded]
        self.spaced = np.array([text[:1].isspace() for text in decoded])
        barred = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
        # spare entries of BERT's vocabularies
        barred |= {token for name, token in ids.items() if re.fullmatch(r"\[unused\d+\]", name)}
        barred |= {token for token, text in enumerate(self.texts) if not text.isprintable() or "\ufffd" in text}
        candidates = [token for token, text in enumerate(self.texts) if text and token not in barred]
        self.candidates = np.array(candidates, np.int64)


@dataclass(frozen=True)
class Text:
    """A text of T tokens, without special ones around them."""

    text: str
    ids: np.ndarray  # [T] int64
    starts: np.ndarray  # [T] int64, a token's first character, without white space
    ends: np.ndarray  # [T] int64, the character after its last one, without white space
    # [T] bool, whether a token may be corrupted: not white space, no byte of a character that several tokens share, and
    # no part of a protected answer
    eligible: np.ndarray
    answer: tuple[int, int] | None  # its characters [start, end); None for a question

    @classmethod
    def of(cls, text: str, encoding: Encoding, answer: tuple[int, int] | None, *, protected: bool) -> "Text":
        tokens = TextTokens.of(encoding, text)
        starts = tokens.starts.astype(np.int64)
        ends = tokens.ends.astype(np.int64)
        for token, (start, end) in enumerate(zip(tokens.starts, tokens.ends, strict=True)):
            piece = text[start:end]
            starts[token] += len(piece) - len(piece.lstrip())
            ends[token] = starts[token] + len(piece.strip())
        eligible = starts < ends
        shared = starts[1:] < ends[:-1]
        eligible[1:] &= ~shared
        eligible[:-1] &= ~shared
        if protected and answer is not None:
            eligible &= (ends <= answer[0]) | (starts >= answer[1])
        return cls(text, tokens.ids.astype(np.int64), starts, ends, eligible, answer)


def corrupt(
    ids: np.ndarray, eligible: np.ndarray, share: float, vocabulary: Vocabulary, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Selects tokens, `share` of the eligible ones in expectation, and corrupts them: ids [T], ascending positions [S],
    and for the draw of each selected token a float64 number in [0, 1), [S].
    """
    count = int(share * eligible.sum() + rng.random())
    selected = np.sort(rng.choice(np.flatnonzero(eligible), count, replace=False))
    fate = rng.random(count)
    other = np.where(fate < MASKED + RANDOM, rng.choice(vocabulary.candidates, count), ids[selected])
    corrupted = ids.copy()
    corrupted[selected] = np.where(fate < MASKED, vocabulary.mask_id, other)
    return corrupted, selected, rng.random(count)


def splice(text: Text, positions: np.ndarray, predicted: np.ndarray, vocabulary: Vocabulary) -> tuple[str, int]:
    """The text with the ids `predicted` [S] at ascending `positions` [S], and where the answer begins in it.

    A token that came back unchanged keeps its spelling. The text between tokens does not change, except:
      - a space is added before a token that begins a word if the replaced token did not (`##ing` -> `cat`), and where
        the decoder sees two words that would otherwise become one ("well-known" -> "well and known");
      - the space before a token that continues a word is dropped if the replaced token began one (`cat` -> `##s`);
      - the answer stays a word: the space after it is never dropped, and one is added where a token next to it becomes
        one that would make a word with it ("1204," -> "1204 s").
    """
    answer_start, answer_end = text.answer or (-1, -2)  # a question: no token is at its answer
    start = max(answer_start, 0)
    changed = predicted != text.ids[positions]
    replacements = dict(zip(positions[changed].tolist(), predicted[changed].tolist(), strict=True))
    parts: list[str] = []
    done = 0  # characters of the text that `parts` replaces
    for position, token in replacements.items():
        begin = int(text.starts[position])
        end = int(text.ends[position])
        piece = vocabulary.texts[token]
        spaced = vocabulary.spaced[token]
        was_spaced = vocabulary.spaced[text.ids[position]]
        cut = begin
        before = text.text[max(begin - 1, 0) : begin]
        if parts and done == begin:
            before = parts[-1][-1]
        if before.isspace():
            if was_spaced and not spaced and not answer_start < begin <= answer_end + 1:
                cut -= 1
        elif before:
            apart = (spaced or begin == answer_end) and _one_word(before, piece)
            if apart or (spaced and not was_spaced):
                piece = " " + piece
        following = position + 1
        if following not in replacements and _one_word(piece, text.text[end : end + 1]):
            next_word = following < len(text.ids) and vocabulary.spaced[text.ids[following]]
            if next_word or end == answer_start:
                piece += " "
        parts += [text.text[done:cut], piece]
        done = end
        if end <= answer_start:
            start += len(piece) - (end - cut)
    return "".join(parts) + text.text[done:], start


def _one_word(left: str, right: str) -> bool:
    return left[-1:].isalnum() and right[:1].isalnum()
