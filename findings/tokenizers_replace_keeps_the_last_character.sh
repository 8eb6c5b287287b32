#!/usr/bin/env bash
# tokenizers 0.23.3: a normalizer that writes one character for several gives its token the offsets of one of them only.
# The guess was the whole match. normalizers.Replace keeps the last one. ALBERT's and XLNet's tokenizers replace the
# quotation marks `` and '' by ", so that a mark begins at its second character. An answer cut out by offsets then reads
# "`Emma''" for "``Emma''". Corpora that were tokenised as the Penn Treebank have such marks. normalizers.NFC
# keeps the first one: of a letter and its accent only the letter, of a Hangul syllable in parts only the first part.
# A replacement that is longer than its match has the offsets of all of it.
# Seen, each token and its part of the text:
#   Replace: ``Emma'' as "Emma": ` E m m a ' | a---b as a-b: the third - | longer, & as and: & & &
#   NFC: e + accent: e | a Hangul syllable in three parts: the first one
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet tokenizers==0.23.3
cat >"$folder/offsets.py" <<'PY'
from tokenizers import Regex, Tokenizer, models, normalizers

pairs = normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.Replace("''", '"')])
cases = {
    "quotation marks": (pairs, "``Emma''"),
    "regex": (normalizers.Replace(Regex("-+"), "-"), "a---b"),
    "NFC accent": (normalizers.NFC(), "e\u0301"),
    "NFC syllable": (normalizers.NFC(), "\u1112\u1161\u11ab"),
    "longer": (normalizers.Replace("&", "and"), "&"),
}
for name, (normalizer, text) in cases.items():
    normal = normalizer.normalize_str(text)
    letters = {letter: number for number, letter in enumerate(sorted({*normal}))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.normalizer = normalizer
    encoding = tokenizer.encode(text)
    assert "".join(encoding.tokens) == normal
    tokens = [token.encode("ascii", "backslashreplace").decode() for token in encoding.tokens]
    print("seen", name, *(f"{token}:{begin}-{end}" for token, (begin, end) in zip(tokens, encoding.offsets)))
PY
export PATH="$folder/venv/bin:$PATH"
seen=$(python "$folder/offsets.py" 2>"$folder/stderr" | grep '^seen') || { cat "$folder/stderr"; exit 1; }
echo "$seen"
expected='seen quotation marks ":1-2 E:2-3 m:3-4 m:4-5 a:5-6 ":7-8
seen regex a:0-1 -:3-4 b:4-5
seen NFC accent \xe9:0-1
seen NFC syllable \ud55c:0-1
seen longer a:0-1 n:0-1 d:0-1'
[ "$seen" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
