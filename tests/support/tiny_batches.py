"""Random padded batches over the vocabulary of `tests.support.tiny_models`."""

import torch
from torch.nn.functional import pad

from swep_ds.data.batches import IGNORED, Batch
from swep_ds.models.outputs import QAModel, QAOutput


def batch(lengths=(12, 7, 9), seed: int = 0, dtype=torch.float64) -> Batch:
    """Windows of these lengths, answers of two tokens, each window weighing 1 / N."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.tensor([[int(t < n) for t in range(max(lengths))] for n in lengths])
    ids = torch.randint(5, 64, mask.shape, generator=generator)
    starts = torch.tensor([min(2 + i, n - 2) for i, n in enumerate(lengths)])
    return Batch(
        input_ids=ids * mask,
        attention_mask=mask,
        start_position=starts,
        end_position=starts + 1,
        sample_id=torch.arange(len(lengths)) + 10,
        weight=torch.full((len(lengths),), 1 / len(lengths), dtype=dtype),
        token_weight=torch.full((len(lengths),), 1 / sum(lengths), dtype=dtype),
    )


def generative(lengths=(12, 7, 9), targets=(3, 5, 1), seed: int = 0, dtype=torch.float64) -> Batch:
    """The same windows; answers of `targets` tokens, then 1, the end of sequence."""
    generator = torch.Generator().manual_seed(seed + 1)
    ids = torch.full((len(targets), max(targets) + 1), IGNORED)
    for row, count in enumerate(targets):
        ids[row, :count] = torch.randint(5, 64, (count,), generator=generator)
        ids[row, count] = 1
    return batch(lengths, seed, dtype)._replace(start_position=None, end_position=None, target_ids=ids)


def rounded(windows: Batch, columns: int = 4) -> Batch:
    """The same windows with so many more columns, as `TrainingBatches` makes them."""
    width = torch.tensor(windows.input_ids.shape[1])
    names = ("input_ids", "attention_mask")
    wider = {name: pad(getattr(windows, name), (0, columns)) for name in names} | {"width": width}
    if windows.target_ids is not None:
        wider["target_ids"] = pad(windows.target_ids, (0, columns), value=IGNORED)
    return windows._replace(**wider)


def outputs_with_zeros_and_with_noise_at_padding(qa: QAModel, windows: Batch) -> list[QAOutput]:
    embeddings, mask_NT1 = qa.embed(windows).detach(), windows.attention_mask[..., None]
    noise = torch.randn(embeddings.shape, generator=torch.Generator().manual_seed(0), dtype=embeddings.dtype)
    return [qa(embeddings * mask_NT1 + fill * (1 - mask_NT1), windows, hidden=True) for fill in (0, noise)]
