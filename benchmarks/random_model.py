"""Writes a model with random weights, a tokenizer and long texts, to measure what a model of that size costs.

    python -m benchmarks.random_model t5-11b FOLDER
    python -m benchmarks.random_model path/to/config.json FOLDER
    python -m benchmarks.random_model t5-11b FOLDER --no_weights      # what scripts/train.py --plan needs

Nothing is downloaded, and no more than 1 GiB of weights is in memory at a time. FOLDER/train.json is the training data.
Exit codes as scripts/train.py.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor
from transformers import AutoConfig, AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM, PreTrainedModel

from swep_ds.commands.cli import Parser, main
from swep_ds.common.errors import InputError, as_input_error
from swep_ds.common.files import check_output_folder, read_json, user_path
from swep_ds.data.readers import read_examples
from swep_ds.models.hub import load_tokenizer
from swep_ds.pipeline.export import note_tied_weights, write_model
from swep_ds.ranks.group import process_group

T5 = {"model_type": "t5", "d_model": 1024, "d_kv": 128, "num_layers": 24, "decoder_start_token_id": 0}
# as published, where that differs from transformers' defaults
CONFIGS = {
    "deberta-v2-xxlarge": {
        "model_type": "deberta-v2",
        "num_hidden_layers": 48,
        "relative_attention": True,
        "position_buckets": 256,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": "p2c|c2p",
        "position_biased_input": False,
        "conv_kernel_size": 3,
        "conv_act": "gelu",
    },
    "xlm-roberta-xl": {"model_type": "xlm-roberta-xl"},
    "t5-3b": T5 | {"d_ff": 16384, "num_heads": 32},
    "t5-11b": T5 | {"d_ff": 65536, "num_heads": 128},
}
QUESTIONS = 128
CHARACTERS = 4000  # per text: more than one window


def random_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """Names and bf16 values: matrices from N(0, 0.02^2), scales 1, biases 0; tied weights once."""
    tied = model.all_tied_weights_keys.keys()
    device = get_accelerator().current_device_name()  # a GPU draws billions of numbers in seconds
    for name, hollow in model.state_dict().items():
        if name in tied:
            continue
        if hollow.dim() > 1:
            yield name, torch.empty(hollow.shape, dtype=torch.bfloat16, device=device).normal_(0, 0.02).cpu()
        else:
            yield name, torch.full(hollow.shape, float(not name.endswith("bias")), dtype=torch.bfloat16)


def write_texts(file: Path, questions: int = QUESTIONS, characters: int = CHARACTERS) -> None:
    """SQuAD JSON whose windows are full: the quick start's questions, each text continued by the next ones."""
    examples = read_examples("quickstart:encyclopedia", training=True)[: 4 * QUESTIONS]
    paragraphs = []
    for number, example in enumerate(examples[:questions]):
        text = " ".join(other.context for other in examples[number:])[:characters]
        answer = {"text": example.answers[0], "answer_start": text.index(example.answers[0])}
        qa = {"id": example.id, "question": example.question, "answers": [answer]}
        paragraphs.append({"context": text, "qas": [qa]})
    file.write_text(json.dumps({"data": [{"title": "long texts", "paragraphs": paragraphs}]}), encoding="utf-8")


def write() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("model", help=f"{', '.join(CONFIGS)}, or a config.json")
    parser.add_argument("folder", type=user_path)
    parser.add_argument("--no_weights", action="store_true", help="write only config, tokenizer and texts")
    arguments = parser.parse_args()
    check_output_folder("FOLDER", arguments.folder)
    settings, file = CONFIGS.get(arguments.model), user_path(arguments.model)
    if settings is None:
        if not file.is_file():
            raise InputError(f"{arguments.model}: no such file; known are {', '.join(CONFIGS)}")
        settings = read_json(file)
    with as_input_error(f"{arguments.model}: is not a model's config", "name another file"):
        config = AutoConfig.for_model(**settings)
        auto_class = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForQuestionAnswering
        with torch.device("meta"):
            model = auto_class.from_config(config, dtype=torch.bfloat16)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.no_weights:
        note_tied_weights(model)
        model.config.save_pretrained(arguments.folder)
    else:
        torch.manual_seed(0)
        with process_group():
            write_model(model, random_weights(model), arguments.folder)
    tokenizer = load_tokenizer("quickstart:t5" if config.is_encoder_decoder else "quickstart:encoder")
    tokenizer.model_max_length = 512
    if getattr(config, "type_vocab_size", 0) == 1:  # as in RoBERTa, whose tokenizers give no token types
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.save_pretrained(arguments.folder)
    write_texts(arguments.folder / "train.json")


if __name__ == "__main__":
    main(write)
