"""torch.library.opcheck of both operators, with params and without; started by test_op.py in a process of its own.

After hundreds of other tests in one process, PyTorch 2.13's schema check sometimes ends in a segmentation fault or
std::bad_alloc before it reaches the operator; in a process of its own it never did.
"""

import torch

from swep_ds.kernels import MODES
from swep_ds.kernels.op import perturb_backward_op, perturb_op
from tests.kernels.test_op import batch

# test_op.py itself shows that what torch.compile makes of them computes the same
CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")

if __name__ == "__main__":
    for name in ("learned", "prior"):
        embeddings, params, mask, ids = batch()
        params = params if MODES[name].needs_params else None
        key = (torch.tensor(5), torch.tensor(6), 0.1, name)
        torch.library.opcheck(perturb_op, (embeddings, params, mask, ids, *key), test_utils=CHECKS)
        gradient = torch.randn(16, 3, 7).permute(1, 2, 0)
        tensors = (embeddings.detach(), params if params is None else params.detach(), mask, ids)
        inputs = (gradient, torch.ones(1, 1).expand(3, 7), *tensors, *key)
        torch.library.opcheck(perturb_backward_op, inputs, test_utils=CHECKS)
        print(name)
