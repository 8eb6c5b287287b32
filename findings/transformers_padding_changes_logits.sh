#!/usr/bin/env bash
# transformers 5.23.0 with PyTorch 2.13.0, on a CPU: padding a window by six tokens changes the answer logits of its own
# ten tokens for some models, although attention_mask marks the padding and the model takes it without a warning. FNet
# and YOSO give the same numbers whatever the mask holds. MobileBERT, ConvBERT and Funnel use it, but mix
# neighbouring positions elsewhere, too. BERT's differ by rounding only.
# Seen, the largest difference over the spread of the logits (a mask of ones gives the same bits for the first two):
#   FNet 2, YOSO 0.5 | MobileBERT 2, ConvBERT 0.08, Funnel 0.6 | BERT 1e-06
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 transformers==5.23.0
cat >"$folder/padding.py" <<'PY'
import torch
import transformers
from torch.nn.functional import pad

common = {"vocab_size": 60, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
heads = {"num_attention_heads": 2}
configs = {
    "Bert": common | heads,
    "FNet": common,
    "Yoso": common | heads | {"use_expectation": True},
    "MobileBert": common | heads | {"embedding_size": 8, "intra_bottleneck_size": 16, "num_feedforward_networks": 1},
    "ConvBert": common | heads | {"embedding_size": 16, "head_ratio": 2, "conv_kernel_size": 3},
    "Funnel": {"vocab_size": 60, "block_sizes": [1, 1], "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 16},
}
window = torch.tensor([[5, 7, 8, 9, 2, 10, 11, 12, 13, 2]])
length = window.shape[1]
for name, config in configs.items():
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForQuestionAnswering")(getattr(transformers, f"{name}Config")(**config))
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.3)
    padded = pad(window, (0, 6), value=model.config.pad_token_id)
    mask = pad(torch.ones_like(window), (0, 6))
    with torch.no_grad():
        model.eval()
        alone = model(input_ids=window, attention_mask=torch.ones_like(window)).start_logits
        masked = model(input_ids=padded, attention_mask=mask).start_logits[:, :length]
        unmasked = model(input_ids=padded, attention_mask=torch.ones_like(padded)).start_logits[:, :length]
    change = ((masked - alone).abs().max() / alone.std()).item()
    changes = "changed" if change > 0.01 else "same" if change < 1e-4 else "unclear"
    print("seen", name, changes, "mask ignored" if torch.equal(masked, unmasked) else "mask used", f"({change:.1g})")
PY
export PATH="$folder/venv/bin:$PATH" HF_HUB_OFFLINE=1
seen=$(python "$folder/padding.py" 2>"$folder/stderr" | grep '^seen') || { cat "$folder/stderr"; exit 1; }
echo "$seen"
expected="seen Bert same mask used
seen FNet changed mask ignored
seen Yoso changed mask ignored
seen MobileBert changed mask used
seen ConvBert changed mask used
seen Funnel changed mask used"
[ "$(sed 's/ (.*//' <<<"$seen")" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
