#!/usr/bin/env bash
# tantivy 0.27.0 (Python): delete_documents_by_term() finds documents by a signed integer or a raw text, and none by an
# unsigned integer, although a term query finds them by the same number. It returns a stamp either way and raises
# nothing, so that an index whose documents have unsigned ids keeps each former version of what it should replace.
# Seen, of four documents, two with the number 2: those that a query finds, and those that are left after deleting:
#   integer: 2 found, 2 left | unsigned: 2 found, 4 left
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet tantivy==0.27.0
cat >"$folder/delete.py" <<'PY'
import importlib.metadata

import tantivy

print("tantivy", importlib.metadata.version("tantivy"))
for kind in ("integer", "unsigned"):
    builder = tantivy.SchemaBuilder()
    getattr(builder, f"add_{kind}_field")("number", indexed=True)
    schema = builder.build()
    index = tantivy.Index(schema)
    writer = index.writer(15_000_000, 1)
    for number in (1, 2, 2, 3):
        document = tantivy.Document()
        getattr(document, f"add_{kind}")("number", number)
        writer.add_document(document)
    writer.commit()
    index.reload()
    hits = index.searcher().search(tantivy.Query.term_query(schema, "number", 2)).hits
    writer.delete_documents_by_term("number", 2)
    writer.commit()
    index.reload()
    print("seen", f"{kind}: {len(hits)} found, {index.searcher().num_docs} left")
PY
seen=$("$folder/venv/bin/python" "$folder/delete.py")
echo "$seen"
expected="seen integer: 2 found, 2 left
seen unsigned: 2 found, 4 left"
[ "$(grep '^seen' <<<"$seen")" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
