#!/usr/bin/env bash
# transformers 5.23.0 with PyTorch 2.13.0, on a CPU: a model for extractive question answering takes a start or end
# position of -100, the label that the library's losses over tokens leave out, for position 0. So an answer that is to
# be left out trains the model to point at its first token. What is left out instead is a position at or past the end
# of the window. A batch in which all are past it has the loss NaN. BERT, ModernBERT, GPT-2 and BART do the same.
# Seen, for a window of ten tokens: the losses of -100 and of 0 are equal, that of 10 is NaN; beside an answer at 3, one
#   at 10 changes nothing and one at -100 changes the loss
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 transformers==5.23.0
cat >"$folder/loss.py" <<'PY'
import math

import torch
import transformers

encoder = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
encoder |= {"num_attention_heads": 2}
ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
bart = {"vocab_size": 60, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
bart |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
gpt2 = {"vocab_size": 60, "n_embd": 16, "n_layer": 1, "n_head": 2}
window = torch.tensor([[5, 7, 8, 9, 2, 10, 11, 12, 13, 2]])
for name, config in {"Bert": encoder, "ModernBert": encoder | ids, "GPT2": gpt2, "Bart": bart}.items():
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForQuestionAnswering")(getattr(transformers, f"{name}Config")(**config))
    model.eval()

    def loss(*positions):
        at = torch.tensor(positions)
        return model(input_ids=window.expand(len(at), -1), start_positions=at, end_positions=at).loss.item()

    left_out = math.isclose(loss(3, 10), loss(3), rel_tol=1e-5)
    counted = not math.isclose(loss(3, -100), loss(3), rel_tol=1e-5)
    print("seen", name, loss(-100) == loss(0), math.isnan(loss(10)), left_out, counted)
PY
export PATH="$folder/venv/bin:$PATH" HF_HUB_OFFLINE=1
seen=$(python "$folder/loss.py" 2>"$folder/stderr" | grep '^seen') || { cat "$folder/stderr"; exit 1; }
echo "$seen"
expected=$(for name in Bert ModernBert GPT2 Bart; do echo "seen $name True True True True"; done)
[ "$seen" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
