#!/usr/bin/env bash
# tantivy 0.27.0 (Python): `with index.writer() as writer:` commits at its end, also when an exception leaves the block.
# A database's connection would roll back. So what was added before the error is in the index, as a half-done update:
# whoever deletes a text and adds its new passages one by one keeps only some of them.
# Seen, documents after a block that adds one and raises, and after one that adds one and calls rollback() first:
#   with: 1 | with rollback: 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet tantivy==0.27.0
cat >"$folder/commit.py" <<'PY'
import contextlib
import importlib.metadata

import tantivy

print("tantivy", importlib.metadata.version("tantivy"))
for way in ("with", "with rollback"):
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("words")
    index = tantivy.Index(builder.build())
    with contextlib.suppress(KeyError), index.writer(15_000_000, 1) as writer:
        document = tantivy.Document()
        document.add_text("words", "half of a text")
        writer.add_document(document)
        if way == "with rollback":
            writer.rollback()
        raise KeyError("the other half cannot be read")
    index.reload()
    print("seen", f"{way}: {index.searcher().num_docs}")
PY
seen=$("$folder/venv/bin/python" "$folder/commit.py")
echo "$seen"
expected="seen with: 1
seen with rollback: 0"
[ "$(grep '^seen' <<<"$seen")" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
