#!/usr/bin/env bash
# transformers 5.23.0 against 4.57.6, with PyTorch 2.13.0: T5Config(tie_word_embeddings=False), as T5 v1.1 and Flan-T5
# are configured, no longer gives a model with an output layer of its own. Version 5 sets the field back to true and
# uses the input table as output layer, without a word; MT5 and LongT5 do so, too. Version 4 keeps them apart. A folder
# that version 5 saves of such a model gives other logits in version 4: it takes the saved true for the first T5's way
# and divides the decoder's output by the root of d_model. An untied folder of version 4 keeps its output layer in
# version 5 and gives the same logits in both, although the loaded model's config says that it is tied.
# Seen, for a random model with d_model 16: version 5 is tied and version 4 is not; the largest logit of the folder
#   that version 5 saved is 4 times as large in version 5 as in version 4, that of version 4's folder is the same
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for version in 4.57.6 5.23.0; do
    python3 -m venv "$folder/$version"
    "$folder/$version/bin/python" -m pip install --quiet torch==2.13.0 transformers==$version
done
cat >"$folder/t5.py" <<'PY'
import sys

import torch
import transformers

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
what, folder = sys.argv[1:]
names = ("T5", "MT5", "LongT5")
for name in names if what == "save" else names[:1]:
    kind = getattr(transformers, f"{name}ForConditionalGeneration")
    if what == "save":
        sizes = {"vocab_size": 50, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 1, "num_heads": 4}
        config = getattr(transformers, f"{name}Config")(
            **sizes, tie_word_embeddings=False, feed_forward_proj="gated-gelu", decoder_start_token_id=0
        )
        torch.manual_seed(0)
        model = kind(config)
        model.save_pretrained(f"{folder}/{name}")
    else:
        model = kind.from_pretrained(f"{folder}/{name}")
    tied = model.lm_head.weight is model.shared.weight
    print("seen", name, "tied" if tied else "untied", "config says", model.config.tie_word_embeddings)
ids = torch.arange(2, 12)[None]
if what == "load":
    with torch.no_grad():
        print("logit", model.eval()(input_ids=ids, decoder_input_ids=ids).logits.abs().max().item())
PY
export HF_HUB_OFFLINE=1
t5() { # VERSION COMMAND FOLDER
    "$folder/$1/bin/python" "$folder/t5.py" "$2" "$folder/saved by $3" 2>"$folder/stderr" && return
    cat "$folder/stderr"
    exit 1
}
{
    for version in 4.57.6 5.23.0; do echo "$version:"; t5 $version save $version; done
    for saved in 4.57.6 5.23.0; do
        for version in 4.57.6 5.23.0; do
            echo "saved by $saved, loaded by $version:"
            t5 $version load $saved >"$folder/loaded"
            grep '^seen' "$folder/loaded"
            grep '^logit' "$folder/loaded" >"$folder/logit of $saved in $version"
        done
        cat "$folder/logit of $saved in "* | python3 -c '
import sys
four, five = (float(line.split()[1]) for line in sys.stdin)
print(f"seen logits in version 5 over those in version 4: {five / four:.3f}")'
    done
} | tee "$folder/seen"
cat >"$folder/expected" <<'TXT'
4.57.6:
seen T5 untied config says False
seen MT5 untied config says False
seen LongT5 untied config says False
5.23.0:
seen T5 tied config says True
seen MT5 tied config says True
seen LongT5 tied config says True
saved by 4.57.6, loaded by 4.57.6:
seen T5 untied config says False
saved by 4.57.6, loaded by 5.23.0:
seen T5 untied config says True
seen logits in version 5 over those in version 4: 1.000
saved by 5.23.0, loaded by 4.57.6:
seen T5 tied config says True
saved by 5.23.0, loaded by 5.23.0:
seen T5 tied config says True
seen logits in version 5 over those in version 4: 4.000
TXT
diff "$folder/seen" "$folder/expected"
