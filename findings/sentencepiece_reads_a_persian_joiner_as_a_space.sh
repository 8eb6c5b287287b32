#!/usr/bin/env bash
# sentencepiece 0.2.3 and tokenizers 0.23.3: nmt_nfkc, the default rule, with which T5, mT5 and XLM-R were made, turns
# the joiner U+200C into a space and keeps its twin U+200D. The guess was that both stay, as in NFKC, or that both go. A
# Persian word with the joiner is then read as two words and written with a space, so that no generated answer with it
# is an exact match: 356 of the 1,302 answers of PersianQA's test file hold it. The normalizer Nmt of tokenizers, which is
# named after the same rules, turns U+200D into a space as well: it takes joined emoji and Indic conjuncts apart.
# Seen, by nmt_nfkc and by Nmt and NFKC: U+200C: a space and a space | U+200D: U+200D and a space
#   a Persian verb, encoded and decoded by sentencepiece: its two parts with a space
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet tokenizers==0.23.3 sentencepiece==0.2.3
cat >"$folder/compare.py" <<'PY'
import io

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import normalizers

VERB = "\u0645\u06cc\u200c\u0631\u0648\u062f"
model = io.BytesIO()
lines = iter(["the old mill was built by the river", VERB] * 20)
sizes = {"vocab_size": 60, "hard_vocab_limit": False, "minloglevel": 2}
SentencePieceTrainer.train(sentence_iterator=lines, model_writer=model, **sizes)
slow = SentencePieceProcessor(model_proto=model.getvalue())
fast = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
for text in ("a\u200cb", "a\u200db"):
    normal = slow.normalize(text).removeprefix("\u2581").replace("\u2581", " ")
    print("seen", ascii(normal), ascii(fast.normalize_str(text)))
print("seen", ascii(slow.decode(slow.encode(VERB))))
PY
seen=$("$folder/venv/bin/python" "$folder/compare.py" 2>"$folder/stderr" | grep '^seen') || { cat "$folder/stderr"; exit 1; }
echo "$seen"
expected="seen 'a b' 'a b'
seen 'a\u200db' 'a b'
seen '\u0645\u06cc \u0631\u0648\u062f'"
[ "$seen" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
