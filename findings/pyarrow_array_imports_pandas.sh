#!/usr/bin/env bash
# pyarrow 26.0.1 with pandas 3.1.1 installed: the first pa.array([1, 2, 3]) imports pandas, although neither the input nor
# the result has anything to do with it, and so does to_numpy() of an array. `import pyarrow` and Array.from_buffers do
# not. A short program that only makes an Arrow array pays for the import of pandas.
# Seen, whether pandas is imported after each step:
#   import: False, array: True | import: False, from_buffers: False, to_numpy: True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet pyarrow==26.0.1 numpy==2.4.6 pandas==3.1.1
cat >"$folder/make_array.py" <<'PY'
import sys

import pyarrow

seen = [f"import: {'pandas' in sys.modules}"]
pyarrow.array([1, 2, 3])
seen.append(f"array: {'pandas' in sys.modules}")
print(", ".join(seen))
PY
cat >"$folder/make_numpy.py" <<'PY'
import sys

import pyarrow

seen = [f"import: {'pandas' in sys.modules}"]
numbers = pyarrow.Array.from_buffers(pyarrow.int32(), 2, [None, pyarrow.py_buffer(bytes(8))])
seen.append(f"from_buffers: {'pandas' in sys.modules}")
numbers.to_numpy()
seen.append(f"to_numpy: {'pandas' in sys.modules}")
print(", ".join(seen))
PY
seen="$("$folder/venv/bin/python" "$folder/make_array.py") | $("$folder/venv/bin/python" "$folder/make_numpy.py")"
expected="import: False, array: True | import: False, from_buffers: False, to_numpy: True"
echo "seen: $seen"
[ "$seen" = "$expected" ]
