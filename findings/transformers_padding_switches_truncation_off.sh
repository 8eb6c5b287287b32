#!/usr/bin/env bash
# transformers 5.23.0: a tokenizer that is given max_length and no truncation cuts the text to max_length. With
# padding=True or padding="max_length" beside it, the same call no longer cuts anything, and the text is longer than
# max_length. So padding, which only makes texts longer, decides whether they are cut. A warning says so for True, and
# nothing for "max_length".
# Seen, the tokens of a text of 40 words with max_length 8:
#   no padding: 8 | padding True: 40 | padding "max_length": 40 | both with truncation True: 8
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet transformers==5.23.0
cat >"$folder/cut.py" <<'PY'
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

words = Tokenizer(WordLevel({"[UNK]": 0, "[PAD]": 1, "word": 2}, unk_token="[UNK]"))
words.pre_tokenizer = Whitespace()
text = " ".join(["word"] * 40)
for options in (
    {},
    {"padding": True},
    {"padding": "max_length"},
    {"padding": True, "truncation": True},
    {"padding": "max_length", "truncation": True},
):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
    print("seen", *options.values(), len(tokenizer(text, max_length=8, **options)["input_ids"]))
PY
export PATH="$folder/venv/bin:$PATH" HF_HUB_OFFLINE=1
seen=$(python "$folder/cut.py" 2>"$folder/stderr" | grep '^seen') || { cat "$folder/stderr"; exit 1; }
echo "$seen"
expected="seen 8
seen True 40
seen max_length 40
seen True True 8
seen max_length True 8"
[ "$seen" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
