#!/usr/bin/env bash
# transformers 5.23.0 (tokenizers 0.23.3): truncation and padding that one call asks for stay in the tokenizer
# below. save_pretrained() writes them into tokenizer.json. Everything that reads that file by itself then truncates and
# pads: so does Tokenizer.from_file() of tokenizers, where a text that was whole before has lost its end, without a
# word. PreTrainedTokenizerFast.from_pretrained() of the same folder does not, so that no test there shows it. A last
# call without both before the folder is saved leaves it clean.
# Seen, the tokens of a text of 40 words, by Tokenizer.from_file() and by from_pretrained():
#   saved at once: 40 and 40 | after a call with max_length 8: 8 and 40 | and after a plain call: 40 and 40
#   and of a text of 1 word, saved after that call with padding to max_length: 8 and 1
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet transformers==5.23.0 tokenizers==0.23.3
cat >"$folder/save.py" <<'PY'
import sys

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

folder = sys.argv[1]
words = Tokenizer(WordLevel({"[UNK]": 0, "[PAD]": 1, "word": 2}, unk_token="[UNK]"))
words.pre_tokenizer = Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")
text = " ".join(["word"] * 40)


def show(when):
    tokenizer.save_pretrained(folder)
    for shown in (text, "word"):
        by_file = len(Tokenizer.from_file(f"{folder}/tokenizer.json").encode(shown).ids)
        by_folder = len(PreTrainedTokenizerFast.from_pretrained(folder)(shown)["input_ids"])
        print("seen", when, by_file, by_folder)


show("at once")
tokenizer(text, truncation=True, padding="max_length", max_length=8)
show("after truncation")
tokenizer(text)
show("after a plain call")
PY
export PATH="$folder/venv/bin:$PATH" HF_HUB_OFFLINE=1
seen=$(python "$folder/save.py" "$folder/saved" 2>"$folder/stderr" | grep '^seen') || { cat "$folder/stderr"; exit 1; }
echo "$seen"
expected="seen at once 40 40
seen at once 1 1
seen after truncation 8 40
seen after truncation 8 1
seen after a plain call 40 40
seen after a plain call 1 1"
[ "$seen" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
