#!/usr/bin/env bash
# PyTorch 2.13.0 on a CPU, bfloat16: the guess was that every sum inside a backward is added up in float32 and rounded
# once, as the bias of nn.Linear, nn.RMSNorm and nn.GroupNorm are. nn.Embedding and nn.LayerNorm add up in bfloat16: the
# gradient of a row that is read 6,000 times stops at 256. LayerNorm's weight and bias stop at 256 for each thread, so
# that the gradient depends on the number of threads. In float16 it is 2,048. Nothing is logged. The gradient of
# a BERT in bfloat16 over 16 windows of 384 tokens is therefore wrong by nearly its own length. That of one in float32
# under autocast to bfloat16, whose tables and norms stay float32, is right.
# Seen, for 6,000 gradients of 1 (6016 is the nearest number of bfloat16):
#   Linear, RMSNorm, GroupNorm 6016 | Embedding 256 | LayerNorm 256 by one thread, 512 by two
#   BERT's error over the gradient's length, of all weights and of the norms:
#   bfloat16 0.87 and 2.2 | autocast 0.004 and 0.01
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 transformers==5.23.0
cat >"$folder/sums.py" <<'PY'
import copy

import torch
from torch import nn
from transformers import BertConfig, BertForQuestionAnswering

HALF = torch.bfloat16
rows = torch.tensor([[1.0, -1.0]]).repeat(6000, 1).to(HALF)
token = torch.zeros(6000, dtype=torch.long)


def bias_gradient(layer, inputs):
    layer = layer.to(HALF)
    layer(inputs).float().sum().backward()
    return f"{[*layer.parameters()][-1].grad.flatten()[0].item():g}"


for threads in (1, 2):
    torch.set_num_threads(threads)
    layers = {"Linear": nn.Linear(2, 2), "RMSNorm": nn.RMSNorm(2), "GroupNorm": nn.GroupNorm(1, 2)}
    values = {name: bias_gradient(layer, rows) for name, layer in layers.items()}
    values["Embedding"] = bias_gradient(nn.Embedding(2, 2), token)
    values["LayerNorm"] = bias_gradient(nn.LayerNorm(2), rows)
    print("seen", threads, "threads:", *(f"{name} {value}" for name, value in values.items()))

torch.set_num_threads(1)
torch.manual_seed(0)
sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
exact = BertForQuestionAnswering(BertConfig(vocab_size=2000, **sizes, **dropout)).to(HALF).float()
ids = torch.randint(5, 2000, (16, 384))
types = (torch.arange(384) >= 20).long().expand(16, 384)
answers = torch.randint(20, 384, (16,))


def gradient(model, autocast=False):
    model.zero_grad()
    with torch.autocast("cpu", HALF, enabled=autocast):
        loss = model(input_ids=ids, token_type_ids=types, start_positions=answers, end_positions=answers).loss
    loss.backward()
    return {name: weight.grad.float().clone() for name, weight in model.named_parameters()}


def error(found, right, part):
    names = [name for name in right if part in name]
    wrong = sum((found[name] - right[name]).square().sum() for name in names)
    return (wrong / sum(right[name].square().sum() for name in names)).sqrt().item()


right = gradient(exact)
for way, found in (("bfloat16", gradient(copy.deepcopy(exact).to(HALF))), ("autocast", gradient(exact, True))):
    whole, norms = error(found, right, ""), error(found, right, "LayerNorm")
    kind = "wrong" if whole > 0.3 and norms > 0.5 else "right" if whole < 0.05 and norms < 0.05 else "unclear"
    print("seen BERT", way, kind, f"({whole:.2g} {norms:.2g})")
PY
export PATH="$folder/venv/bin:$PATH" HF_HUB_OFFLINE=1
seen=$(python "$folder/sums.py" 2>"$folder/stderr" | grep '^seen') || { cat "$folder/stderr"; exit 1; }
echo "$seen"
expected="seen 1 threads: Linear 6016 RMSNorm 6016 GroupNorm 6016 Embedding 256 LayerNorm 256
seen 2 threads: Linear 6016 RMSNorm 6016 GroupNorm 6016 Embedding 256 LayerNorm 512
seen BERT bfloat16 wrong
seen BERT autocast right"
[ "$(sed 's/ (.*//' <<<"$seen")" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
