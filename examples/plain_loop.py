"""SWEP in a custom training loop, here with Accelerate.

    python examples/plain_loop.py
    accelerate launch examples/plain_loop.py

`sd.wrap` gives a module: `.loss` in training, the bare model in evaluation.
"""

import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from trainer import windows
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, DataCollatorWithPadding

import swep_ds as sd
from swep_ds.data.quickstart import ENCODER


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--updates", type=int, default=200)
    updates = options.parse_args().updates

    accelerator = Accelerator()
    tokenizer = AutoTokenizer.from_pretrained(ENCODER)
    model = AutoModelForQuestionAnswering.from_pretrained(ENCODER, dtype=torch.float32)  # its files are float16
    robust = sd.wrap(model, sd.Swep(beta=1e-4), seed=0, updates=updates)
    optimizer = torch.optim.AdamW(robust.parameter_groups(), lr=3e-4)
    rows = windows(tokenizer, 8 * updates * accelerator.num_processes)
    loader = DataLoader(rows, batch_size=8, shuffle=True, collate_fn=DataCollatorWithPadding(tokenizer))
    robust, optimizer, loader = accelerator.prepare(robust, optimizer, loader)

    robust.train()
    for update, batch in enumerate(loader, 1):
        output = robust(**batch)
        accelerator.backward(output.loss)
        optimizer.step()
        optimizer.zero_grad()
        if update % 10 == 0:
            parts = ", ".join(f"{name} {value.item():.3g}" for name, value in output.metrics.items())
            accelerator.print(f"update {update}: loss {output.loss.item():.3f} ({parts})")

    robust.eval()  # from here on the bare model
    batch = next(iter(loader))
    with torch.no_grad():
        output = robust(**batch)
    right = (output.start_logits.argmax(1) == batch["start_positions"]).float().mean()
    accelerator.print(f"{right:.0%} of the starts of one training batch are right")


if __name__ == "__main__":
    main()
