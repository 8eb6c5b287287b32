"""Every field of a model's settings with values of every kind: it loads and works, or one line says why not."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from swep_ds.data.batches import Batch
from swep_ds.errors import InputError
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.models.hub import check_knows, fit_tokenizer, load_tokenizer, longest_window
from swep_ds.models.seq2seq import GenerativeQA
from tests.support import tiny, tiny_models

VALUES = (None, [], [1, "a"], {}, {"a": [None]}, "", "seven", True, -1, 0, 0.5, 10**9, 1e400, 10**30)
TEXT = "The old bridge over the river."
# fields of published files beside those that a tiny model writes
OF_CONFIG = """
    id2label label2id torch_dtype dtype architectures auto_map tie_word_embeddings is_decoder decoder_start_token_id
    forced_eos_token_id attn_implementation pruned_heads num_labels output_attentions return_dict name_or_path
    problem_type task_specific_params output_hidden_states chunk_size_feed_forward layer_types use_cache
"""
OF_TOKENIZER = """
    model_max_length added_tokens_decoder chat_template extra_special_tokens auto_map model_input_names padding_side
    truncation_side do_lower_case additional_special_tokens pad_token_type_id max_len split_special_tokens
    add_prefix_space max_length stride
"""
FILES = {
    "config.json": OF_CONFIG,
    "tokenizer_config.json": OF_TOKENIZER,
    "tokenizer.json": "",
    "generation_config.json": "",
}
KINDS = {"bert": (ExtractiveQA, {}), "t5": (GenerativeQA, {"beams": 1, "max_answer_tokens": 3})}


@pytest.fixture(scope="module", params=KINDS)
def model(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("malformed") / request.param
    tiny_models.model(request.param, vocab_size=200).save_pretrained(folder)
    tiny.wordpiece().save_pretrained(folder)
    return folder


def try_out(folder: Path) -> None:
    """All that a run does with the folder before its first long wait, and the forward pass of an update."""
    tokenizer = load_tokenizer(str(folder))
    check_knows(tokenizer, [TEXT], "model.name x", "data.train")
    loader, options = KINDS[folder.name]
    qa = loader.load(str(folder), activation_checkpointing=False, **options)
    fit_tokenizer(tokenizer, qa.model, "model.name x")
    if longest_window(tokenizer, qa.model) < 40:
        return  # a window of data.max_length is refused
    encoded = tokenizer(TEXT, TEXT, return_tensors="pt")
    ids = encoded.input_ids
    place = torch.zeros(1, dtype=torch.int64)
    batch = Batch(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        token_type_ids=encoded.token_type_ids if "token_type_ids" in tokenizer.model_input_names else None,
        sample_id=place,
        start_position=place,
        end_position=place,
        target_ids=ids[:, :3],
        weight=torch.ones(1),
        token_weight=torch.ones(1),
    )
    qa.train()
    assert qa(qa.embed(batch), batch, hidden=True).nll.isfinite().all()
    qa.eval()
    qa.predict(batch)


def fields(tree: object, path: tuple = ()) -> list[tuple]:
    """Paths of a JSON tree's values; of long lists and vocabularies the first and the last alone."""
    below = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    below = list(below)
    below = below if len(below) < 30 else [below[0], below[-1]]
    return [place for key, value in below for place in [(*path, key), *fields(value, (*path, key))]]


def replaced(tree: object, path: tuple, value: object) -> object:
    if not path:
        return value
    tree = dict(tree) if isinstance(tree, dict) else list(tree)
    here = tree.get(path[0]) if isinstance(tree, dict) else tree[path[0]]
    tree[path[0]] = replaced(here, path[1:], value)
    return tree


@pytest.mark.parametrize("name", FILES)
def test_every_field_with_values_of_every_kind(name, model, tmp_path):
    folder = tmp_path / model.name
    shutil.copytree(model, folder)
    file = folder / name
    tree = json.loads(file.read_text()) if file.is_file() else {"num_beams": 2, "eos_token_id": 1}
    places = [*fields(tree), *((field,) for field in FILES[name].split() if field not in tree)]
    faults, loaded, shift = {}, 0, 0 if model.name == "bert" else len(VALUES) // 2
    for number, place in enumerate(places):
        value = VALUES[(number + shift) % len(VALUES)]  # in turn: each kind meets many fields
        file.write_text(json.dumps(replaced(tree, place, value)))
        try:
            try_out(folder)
            loaded += 1
        except InputError as error:
            if "\n" in str(error) or len(str(error)) > 1500 or not str(error).startswith("model"):
                faults[place, repr(value)] = str(error)
        except BaseException as error:
            faults[place, repr(value)] = repr(error)[:300]
    assert not faults, "\n".join(f"{place}: {fault}" for place, fault in faults.items())
    assert loaded
