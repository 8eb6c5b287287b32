#!/usr/bin/env bash
# tantivy 0.27.0 (Python): the address of a hit is a segment's number and a place in it, and holds for the searcher that
# gave it. Another searcher of the same index takes it without a word and reads another document, once a commit has
# removed a segment; where the number is beyond its segments, fast_field_values() raises PanicException, a BaseException
# that `except Exception` misses. So hits of a thread that searched before a reload must not be looked up after it.
# Seen, the numbers of the first hit, by the searcher that found it and by one that was opened after the documents of
# the first segment were deleted:
#   found: 1 | read again: 3
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet tantivy==0.27.0
cat >"$folder/addresses.py" <<'PY'
import importlib.metadata

import tantivy

print("tantivy", importlib.metadata.version("tantivy"))
builder = tantivy.SchemaBuilder()
builder.add_text_field("body")
builder.add_integer_field("number", indexed=True, fast=True)
schema = builder.build()
index = tantivy.Index(schema)


def commit(added=(), removed=()):
    writer = index.writer(15_000_000, 1)
    for number in removed:
        writer.delete_documents_by_term("number", number)
    for number in added:
        writer.add_document(tantivy.Document(body="word", number=number))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()


commit(added=(1, 2))
before = index.searcher()
[(_, address), *_] = before.search(tantivy.Query.term_query(schema, "body", "word"), 1).hits
commit(added=(3, 4))
commit(removed=(1, 2))
after = index.searcher()
for what, searcher in (("found", before), ("read again", after)):
    print("seen", f"{what}: {searcher.fast_field_values('number', [address])[0]}")
PY
seen=$("$folder/venv/bin/python" "$folder/addresses.py")
echo "$seen"
expected="seen found: 1
seen read again: 3"
[ "$(grep '^seen' <<<"$seen")" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
