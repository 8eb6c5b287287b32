"""`swep-ds trim`: a model with fewer words."""

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers

from swep_ds.common.errors import as_input_error
from swep_ds.common.files import new_model_folder, read_json
from swep_ds.models.folders import resolve_model
from swep_ds.models.hub import load_config, load_tokenizer
from swep_ds.pipeline.asked import ASKED
from swep_ds.pipeline.export import note_tied_weights, save_tokenizer
from swep_ds.pipeline.folder import READING

# Fields that number words in a config.json and, but for its vocabulary, in a tokenizer.json
IDS = re.compile("ids?|sep|cls|.*token_id")


def trim(name: str, texts: Iterable[str], output: Path) -> tuple[int, int]:
    """Writes the model without the words that no text uses; returns how many there were, and are. Characters, bytes and
    added tokens stay. A text whose words all stay is cut into the same ones, from which the model computes the same."""
    tokenizer = load_tokenizer(name, "MODEL")
    source = resolve_model(name, "MODEL")
    [kind] = load_config(source, "MODEL").architectures or ["AutoModel"]
    with as_input_error(f"MODEL {name}: cannot load", "correct the folder or name another model"):
        model = getattr(transformers, kind).from_pretrained(source, dtype="auto")
    tokenizer.backend_tokenizer.no_truncation()
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    used = {token["id"] for token in content["added_tokens"]}
    for text in texts:
        used.update(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)
    ids = _cut(content["model"], used)
    rows = torch.tensor(list(ids))
    words = model.get_input_embeddings()
    before = len(words.weight)
    head = model.get_output_embeddings() or words
    for weight in {*words.parameters(), *head.parameters()}:  # an output layer may be tied to them
        weight.data = weight.data[rows]
    if hasattr(model, "final_logits_bias"):  # BART's
        model.final_logits_bias = model.final_logits_bias[:, rows]
    note_tied_weights(model)
    content |= {part: _renumbered(content[part], ids) for part in ("added_tokens", "post_processor")}
    with new_model_folder(output) as folder:
        model.save_pretrained(folder)
        save_tokenizer(tokenizer, folder)
        for file in folder.glob("*config.json"):
            file.write_text(json.dumps(_renumbered(read_json(file), ids), indent=2) + "\n", encoding="utf-8")
        (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
        for name in (READING, ASKED):
            if Path(source, name).is_file():
                shutil.copyfile(Path(source, name), folder / name)
    return before, len(ids)


def _cut(model: dict[str, Any], used: set[int]) -> dict[int, int]:
    """Cuts the `model` of a tokenizer.json to the words `used` and those that no text can do without. Returns the new
    ids by the old ones, in the same order."""
    words = listed = model["vocab"]
    if model["type"] == "Unigram":
        words = {word: number for number, (word, _) in enumerate(listed)}
        # the score of an unknown character is that of the least probable word, less 10
        used = used | {model["unk_id"], min(words.values(), key=lambda number: listed[number][1])}
    begin, end = (model.get(affix) or "" for affix in ("continuing_subword_prefix", "end_of_word_suffix"))
    basic = re.compile(f"({re.escape(begin)})?.({re.escape(end)})?|<0x..>", re.DOTALL)  # a character or a byte
    used = used | {number for word, number in words.items() if basic.fullmatch(word)}
    # BPE makes a word of two others, in one of several ways
    made = {(first, second): words[first + second.removeprefix(begin)] for first, second in model.get("merges", ())}
    while parts := {words[part] for pair, word in made.items() if word in used for part in pair} - used:
        used = used | parts
    ids = {old: new for new, old in enumerate(sorted(used))}
    if made:
        model["merges"] = [pair for pair, word in made.items() if word in used]
    if model["type"] == "Unigram":
        model |= {"vocab": [listed[number] for number in ids if number < len(listed)], "unk_id": ids[model["unk_id"]]}
    else:
        model["vocab"] = {word: ids[number] for word, number in words.items() if number in used}
    return ids


def _renumbered(node: Any, ids: dict[int, int], field: str = "") -> Any:
    """A tree of JSON with the new ids, and as many words."""
    if isinstance(node, dict):
        return {name: _renumbered(value, ids, name) for name, value in node.items()}
    if isinstance(node, list):
        return [_renumbered(value, ids, field) for value in node]
    if field in ("vocab_size", "n_words"):
        return len(ids)
    return ids.get(node, node) if type(node) is int and IDS.fullmatch(field) else node
