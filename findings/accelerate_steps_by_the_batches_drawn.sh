#!/usr/bin/env bash
# Accelerate 1.15.0 with PyTorch 2.13.0, on a CPU and one process: accumulate() asks the data loader whether it is at
# its end, not which batch is computed. A loop that draws the four batches of an update first, as it must to weigh them
# by their windows or tokens, and then computes each inside accumulate(), makes four optimizer steps in the last update
# of an epoch if it is a whole one. If it is a shorter one, it makes none, and its gradient joins the next epoch's.
# Seen, the steps that changed the weight, by update, in three epochs of 8 and of 10 batches:
#   8: [1, 4] [1, 4] [1, 4] | 10: [1, 1, 0] [1, 1, 1] [1, 1, 0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet torch==2.13.0 accelerate==1.15.0
cat >"$folder/steps.py" <<'PY'
from itertools import islice

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

for count in (8, 10):
    accelerator = Accelerator(gradient_accumulation_steps=4, cpu=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader([torch.ones(1)] * count, batch_size=1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(3):
        batches, steps = iter(loader), []
        while update := list(islice(batches, 4)):
            steps.append(0)
            for batch in update:
                with accelerator.accumulate(model):
                    accelerator.backward(model(batch).sum())
                    before = model.weight.clone()
                    optimizer.step()
                    optimizer.zero_grad()
                    steps[-1] += int(not torch.equal(before, model.weight))
        print("seen", count, steps)
PY
export PATH="$folder/venv/bin:$PATH"
seen=$(python "$folder/steps.py" 2>"$folder/stderr" | grep '^seen') || { cat "$folder/stderr"; exit 1; }
echo "$seen"
expected="seen 8 [1, 4]
seen 8 [1, 4]
seen 8 [1, 4]
seen 10 [1, 1, 0]
seen 10 [1, 1, 1]
seen 10 [1, 1, 0]"
[ "$seen" = "$expected" ] || { echo "expected:"; echo "$expected"; exit 1; }
