"""SWEP in Hugging Face's Trainer: one base class and one argument. With --lora only low-rank adapters train (peft).

    python examples/trainer.py --output_dir runs/trainer
    torchrun --nproc_per_node 2 examples/trainer.py --output_dir runs/trainer    # DDP; --deepspeed FILE for ZeRO

It trains the package's small encoder on its generated text. The checkpoints hold the bare model, which
AutoModelForQuestionAnswering loads, and beside it the noise generator, with which training resumes.
"""

import argparse

import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, Trainer, TrainingArguments

import swep_ds as sd
from swep_ds.data.quickstart import ENCODER
from swep_ds.data.readers import read_examples
from swep_ds.evaluation.scores import Scorer


class RobustTrainer(sd.hf.RobustMixin, Trainer):
    pass


def windows(tokenizer, count: int) -> list[dict]:
    """Questions with their contexts, cut at 128 tokens, and the tokens of their answers."""
    rows = []
    for example in read_examples("quickstart:encyclopedia", training=True)[:count]:
        row = tokenizer(example.question, example.context, truncation="only_second", max_length=128)
        start, end = (row.char_to_token(place, sequence_index=1) for place in (example.span[0], example.span[1] - 1))
        if start is not None and end is not None:  # the answer is in the window
            rows.append({**row, "start_positions": start, "end_positions": end})
    return rows


def test_set(tokenizer, count: int):
    """Rows to evaluate on, in windows that hold the whole text, and the function that scores answers to them."""
    rows, texts, offsets, answers = [], [], [], []
    for example in read_examples("quickstart:encyclopedia", training=False)[:count]:
        sizes = {"padding": "max_length", "max_length": 128}
        row = tokenizer(example.question, example.context, return_offsets_mapping=True, **sizes)
        begin = example.context.find(example.answers[0])
        end = begin + len(example.answers[0]) - 1
        start, end = (row.char_to_token(place, sequence_index=1) for place in (begin, end))
        places = zip(row.pop("offset_mapping"), row.sequence_ids(), strict=True)
        rows.append({**row, "start_positions": start, "end_positions": end})  # without labels nothing is scored
        texts.append(example.context)
        offsets.append([place if part == 1 else (0, 0) for place, part in places])
        answers.append(example.answers)

    def compute_metrics(given):
        spans = enumerate(zip(*(logits.argmax(1) for logits in given.predictions), strict=True))
        said = {n: texts[n][offsets[n][start][0] : offsets[n][end][1]] for n, (start, end) in spans}
        return Scorer("squad").score(said, dict(enumerate(answers)))  # from swep_ds.evaluation.scores

    return rows, compute_metrics


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--output_dir", required=True)
    options.add_argument("--deepspeed", help="a configuration of DeepSpeed, as TrainingArguments takes it")
    options.add_argument("--max_steps", type=int, default=200)
    options.add_argument("--lora", action="store_true")
    given = options.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(ENCODER)
    model = AutoModelForQuestionAnswering.from_pretrained(ENCODER, dtype=torch.float32)  # its files are float16
    if given.lora:
        from peft import LoraConfig, TaskType, get_peft_model

        model = get_peft_model(model, LoraConfig(task_type=TaskType.QUESTION_ANS, target_modules=["query", "value"]))
    args = TrainingArguments(
        output_dir=given.output_dir,
        max_steps=given.max_steps,
        learning_rate=3e-4,
        per_device_train_batch_size=8,
        logging_steps=10,
        eval_strategy="steps",
        eval_steps=100,
        report_to=[],
        deepspeed=given.deepspeed,
    )
    test, compute_metrics = test_set(tokenizer, 100)
    trainer = RobustTrainer(
        model=model,
        args=args,
        train_dataset=windows(tokenizer, 8 * given.max_steps),
        eval_dataset=test,
        compute_metrics=compute_metrics,
        processing_class=tokenizer,
        method=sd.Swep(beta=1e-4),
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
