"""What stands between the question and the text of a window."""

import copy
import json

import pytest
from transformers import AutoTokenizer

from swep_ds.data.tokens import tokenise
from swep_ds.data.windows import WindowCutter, WindowSettings, named_tokens, separate_texts
from tests.support import tiny


@pytest.mark.parametrize("begin", ["", "<s>"])
def test_a_decoders_question_ends_with_a_newline_that_is_saved(begin, tmp_path):
    tokenizer = tiny.decoder_bpe(begin)
    newline = tokenizer("\n", add_special_tokens=False).input_ids
    question, text = (tokenizer(part, add_special_tokens=False).input_ids for part in ("Who?", "an abbot"))
    first = [tokenizer.convert_tokens_to_ids(begin)] if begin else []
    assert tokenizer("Who?", "an abbot").input_ids == [*first, *question, *text]
    separate_texts(tokenizer)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    for there in (tokenizer, AutoTokenizer.from_pretrained(tmp_path)):
        pair = there("Who?", "an abbot")
        assert pair.input_ids == [*first, *question, *newline, *text]
        assert pair.sequence_ids() == [*[None] * len(first), *[0] * len(question), None, *[1] * len(text)]
        assert there("Who?").input_ids == [*first, *question]
        cutter = WindowCutter(there, WindowSettings(), tiny.example("Who?", "an abbot", "an abbot"))
        assert cutter.template.middle.tolist() == newline
    before = tokenizer.backend_tokenizer.to_str()
    separate_texts(tokenizer)
    assert tokenizer.backend_tokenizer.to_str() == before


@pytest.mark.parametrize("make", [tiny.wordpiece, tiny.byte_bpe, tiny.unigram])
def test_a_tokenizer_that_separates_texts_is_left_alone(make):
    before = make().backend_tokenizer.to_str()
    separate_texts(make())
    assert make().backend_tokenizer.to_str() == before


@pytest.mark.parametrize("make", tiny.TOKENIZERS.values())
def test_a_special_token_that_a_text_spells_out_is_text(make):
    tokenizer = make()
    text = f"an abbot {' '.join(tokenizer.all_special_tokens)} from the valley"
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<hl>"]})
    example = tiny.example(f"Who is {tokenizer.all_special_tokens[0]}?", text, "an abbot")
    cutter = WindowCutter(tokenizer, WindowSettings(), example)
    tokens, specials = cutter.encode(text), {*named_tokens(tokenizer).values()}
    assert not {*tokens.ids.tolist()} & specials
    marker = tokenizer.convert_tokens_to_ids("<hl>")
    assert marker in cutter.encode("an abbot <hl> from").ids
    [(_, _, contexts, [(question, _)])] = tokenise([example], cutter.backend, cutter.gap, 64, cutter.as_text)
    assert contexts[text].ids.tolist() == tokens.ids.tolist()
    assert not {*question.tolist()} & specials
    covered = {place for start, end in zip(tokens.starts, tokens.ends, strict=True) for place in range(start, end)}
    assert covered >= {place for place, character in enumerate(text) if character != " "}
