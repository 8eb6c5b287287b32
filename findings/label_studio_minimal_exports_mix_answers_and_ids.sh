#!/usr/bin/env bash
# label-studio-sdk 2.1.2, whose converter writes Label Studio's exports: tasks were imported with an answer and an id, and
# an annotator marked one answer and submitted the other task with nothing marked, since its text does not answer it.
# Guess: JSON-MIN and CSV are two forms of the same rows. But where nothing was marked, JSON-MIN gives the imported answer
# under the name of the labels, as if it had been annotated; CSV gives an empty cell and moves the imported answer to a
# column _data_answer. And the id is the task's number in JSON-MIN and the imported id in CSV. Nothing is logged.
# Seen, as id: answer:
#   JSON_MIN 1: marked "1907", 2: "1911" (the imported one) | CSV q-1: marked "1907", q-2: nothing (_data_answer "1911")
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet label-studio-sdk==2.1.2
cat >"$folder/export.py" <<'PY'
import csv
import json
import sys
from pathlib import Path

from label_studio_sdk.converter import Converter

folder = Path(sys.argv[1])
context = "The museum opened in 1907. In 1911 the east wing burned."
config = '<View><Text name="text" value="$context"/><Labels name="answer" toName="text"><Label value="A"/></Labels></View>'
value = {"start": 21, "end": 25, "text": "1907", "labels": ["A"]}
marked = {"id": "a", "from_name": "answer", "to_name": "text", "type": "labels", "value": value}
tasks = []
for number, result in ((1, [marked]), (2, [])):
    data = {"id": f"q-{number}", "context": context, "question": "When?", "answer": "1911"}
    annotation = {"id": 10 + number, "completed_by": 1, "was_cancelled": False, "result": result, "created_at": "2026"}
    tasks.append({"id": number, "data": data, "annotations": [annotation]})
(folder / "tasks.json").write_text(json.dumps(tasks))
for name in ("JSON_MIN", "CSV"):
    converter = Converter(config=config, project_dir=str(folder))
    converter.convert(str(folder / "tasks.json"), str(folder / name), name, is_dir=False)
    [file] = (folder / name).iterdir()
    rows = json.loads(file.read_text()) if name == "JSON_MIN" else list(csv.DictReader(file.open()))
    for row in rows:
        answer = row["answer"]
        if answer and isinstance(answer, str) and answer.startswith("["):
            answer = json.loads(answer)
        shown = f"marked {answer[0]['text']}" if isinstance(answer, list) else repr(answer)
        print("seen", name, row["id"], shown, "_data_answer", row.get("_data_answer"))
PY
seen=$("$folder/venv/bin/python" "$folder/export.py" "$folder" 2>"$folder/stderr" | grep '^seen') || {
    cat "$folder/stderr"
    exit 1
}
echo "$seen"
expected="seen JSON_MIN 1 marked 1907 _data_answer None
seen JSON_MIN 2 '1911' _data_answer None
seen CSV q-1 marked 1907 _data_answer 1911
seen CSV q-2 '' _data_answer 1911"
[ "$seen" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
