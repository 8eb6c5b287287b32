"""Tokenizers: those that are published as a SentencePiece model alone, and whether they fit their model."""

import io

import pytest
from sentencepiece import SentencePieceTrainer

from swep_ds.errors import InputError
from swep_ds.models.names import check_vocabulary, load_tokenizer
from tests import tiny, tiny_models

T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
DEBERTA = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
DEBERTA |= {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}


@pytest.mark.parametrize(
    ("architecture", "file", "special"),
    [("t5-v1.1", "spiece.model", T5), ("mt5", "spiece.model", T5), ("deberta-v2", "spm.model", DEBERTA)],
)
def test_a_sentencepiece_model_alone_gives_a_fast_tokenizer(architecture, file, special, tmp_path):
    written = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(tiny.SENTENCES * 3), model_writer=written, vocab_size=90, minloglevel=2, **special
    )
    (tmp_path / file).write_bytes(written.getvalue())
    tiny_models.config(architecture).save_pretrained(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path))
    text = "the old bridge over the river"
    encoding = tokenizer(text, return_offsets_mapping=True)
    assert tokenizer.decode(encoding.input_ids, skip_special_tokens=True) == text
    assert encoding.input_ids[-1] == special["eos_id"]
    assert tokenizer.pad_token_id == 0
    covered = {place for begin, end in encoding.offset_mapping for place in range(begin, end)}
    assert covered >= {place for place, letter in enumerate(text) if letter != " "}


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused():
    model = tiny_models.model("t5", vocab_size=len(tiny.wordpiece()))
    check_vocabulary(tiny.wordpiece(), model, "model x")
    with pytest.raises(InputError, match=r"^model x: its tokenizer has more tokens than .* \(340, 200\): they do not"):
        check_vocabulary(tiny.byte_bpe(), model, "model x")
