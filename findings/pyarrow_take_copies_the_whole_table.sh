#!/usr/bin/env bash
# pyarrow 26.0.1: take of 32 rows from a table of 40 chunks allocates as much as the whole table, since it joins all
# chunks of a column first, be it numbers, texts or lists. Reading a table in batches by take is therefore quadratic in
# its rows. Lists of more than 2^31 - 1 elements in all cannot be taken from at all, not even one row. Slices of single
# rows, joined by concat_batches, allocate what they hold.
# Seen, the peak of what take allocates over the size of the table, and of what it gives:
#   int32 1.0 of 0.0, string 1.0 of 0.0, list 1.0 of 0.0; slices 0.0; two rows of 2^31 elements: ArrowInvalid
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet pyarrow==26.0.1 numpy==2.4.6
cat >"$folder/take.py" <<'PY'
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

print("seen pyarrow", pa.__version__)
ROWS, WIDTH, CHUNKS = 1000, 384, 40
numbers = pa.array(np.zeros(ROWS * WIDTH, np.int32))
offsets = pa.array(np.arange(ROWS + 1, dtype=np.int32) * WIDTH)
columns = {
    "int32": numbers,
    "string": pa.array(["x" * WIDTH] * ROWS),
    "list": pa.ListArray.from_arrays(offsets, numbers),
}
pools = []  # a pool must outlive what it allocated


def peak(give, *args) -> float:
    pools.append(pa.proxy_memory_pool(pa.default_memory_pool()))
    give(*args, memory_pool=pools[-1])
    return pools[-1].max_memory()


for kind, column in columns.items():
    chunk = pa.record_batch([column], ["column"])
    table = pa.Table.from_batches([chunk] * CHUNKS)
    rows = pa.array(np.arange(0, table.num_rows, table.num_rows // 32)[:32])
    print("seen", kind, f"{peak(pc.take, table, rows) / table.nbytes:.1f} of {table.take(rows).nbytes / table.nbytes:.1f}")
slices = [chunk.slice(row % ROWS, 1) for row in rows.to_pylist()]
print("seen slices", f"{peak(pa.concat_batches, slices) / table.nbytes:.1f}")
many = pa.Table.from_batches([chunk] * (2**31 // (ROWS * WIDTH) + 1))
try:
    print("seen many", len(many.take([0, 1])))
except pa.ArrowInvalid as error:
    print("seen many ArrowInvalid", error)
PY
seen=$("$folder/venv/bin/python" "$folder/take.py" | grep '^seen')
echo "$seen"
expected="seen pyarrow 26.0.1
seen int32 1.0 of 0.0
seen string 1.0 of 0.0
seen list 1.0 of 0.0
seen slices 0.0
seen many ArrowInvalid"
[ "$(sed 's/ offset overflow.*//' <<<"$seen")" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
