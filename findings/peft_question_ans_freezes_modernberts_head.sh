#!/usr/bin/env bash
# peft 0.21.2 with transformers 5.23.0 and PyTorch 2.13.0: LoRA with task_type QUESTION_ANS trains a BERT's new head
# beside the adapter and saves it. ModernBERT's head for the same task, classifier, stays as it was drawn: frozen, and
# left out of what save_pretrained() writes, without a word. Whoever loads the adapter gets another random head.
# After merge_and_unload() every weight of the BERT is frozen but for its head, so that an optimizer made from the
# weights that take a gradient goes on with the head alone. ModernBERT has then nothing to train.
# Seen, the weights that are trained beside the adapter's, those that are saved beside them, and those after merging:
#   bert: qa_outputs.weight qa_outputs.bias each time | modernbert: none each time
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 transformers==5.23.0 peft==0.21.2
cat >"$folder/head.py" <<'PY'
import warnings

import transformers
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

warnings.simplefilter("ignore", FutureWarning)
sizes = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
bert = transformers.BertForQuestionAnswering(transformers.BertConfig(**sizes))
modernbert = transformers.ModernBertForQuestionAnswering(transformers.ModernBertConfig(**sizes, **ids))


def trained(model):
    names = (name for name, weight in model.named_parameters() if weight.requires_grad and "lora_" not in name)
    return [name.removeprefix("base_model.model.").replace(".modules_to_save.default", "") for name in names]


for name, model, target in (("bert", bert, "query"), ("modernbert", modernbert, "Wqkv")):
    adapted = get_peft_model(model, LoraConfig(task_type="QUESTION_ANS", target_modules=[target], r=2))
    before = trained(adapted)
    saved = (weight.removeprefix("base_model.model.") for weight in get_peft_model_state_dict(adapted))
    beside = sorted((weight for weight in saved if "lora_" not in weight), reverse=True)
    print("seen", name, *before, "| saved", *beside, "| merged", *trained(adapted.merge_and_unload()))
PY
export PATH="$folder/venv/bin:$PATH" HF_HUB_OFFLINE=1
seen=$(python "$folder/head.py" 2>"$folder/stderr" | grep '^seen') || { cat "$folder/stderr"; exit 1; }
echo "$seen"
head="qa_outputs.weight qa_outputs.bias"
expected="seen bert $head | saved $head | merged $head
seen modernbert | saved | merged"
[ "$seen" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
