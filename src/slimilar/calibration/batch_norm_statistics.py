"""Batch-norm statistics of a pruned network."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from slimilar.calibration.batches import batch_size, to_batches
from slimilar.calibration.several_inputs import as_example
from slimilar.errors import InvalidInput
from slimilar.utils.modules import check_model, device_of
from slimilar.utils.precision import working_dtype
from slimilar.utils.pytree import Example, arguments, map_tensors


def recalibrate(model: nn.Module, example: Example, calibration: Any) -> nn.Module:
    r"""Return a NEW model whose batch-norm statistics are re-estimated on the given images.

    Removing channels changes the inputs of later batch norms, but not their $\mu$ and $\sigma^2$. These are
    re-estimated as the mean over batches, with all batch norms in training mode.
    This helps without reconstruction (`reconstruction="none"` or `"merge"`). After least squares the statistics are
    already right, and recalibration does harm.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    >>> x = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> seen = recalibrate(net, x[:1], x)[0:1](x)
    >>> torch.allclose(recalibrate(net, x[:1], x)[1].running_mean, seen.mean((0, 2, 3)), atol=1e-5)
    True
    """
    small = deepcopy(check_model(model))
    norms = _norms(small)
    if not norms:
        raise InvalidInput(
            "recalibration needs a model with batch norms that keep statistics, got one without any"
        )
    wide = deepcopy(small).to(working_dtype(norms[0].get_buffer("running_mean").dtype)).eval()
    for norm in _norms(wide):
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over all batches
        norm.train()
    weight = norms[0].get_buffer("running_mean")

    def there(t: Tensor) -> Tensor:
        return t.to(device_of(small), working_dtype(weight.dtype))

    with torch.no_grad():
        for batch in to_batches(calibration, example, batch_size(example)):
            args, kwargs = arguments(as_example(batch, example))
            wide(*map_tensors(there, args), **map_tensors(there, kwargs))
    for norm, found in zip(norms, _norms(wide), strict=True):
        for name, buffer in norm.named_buffers(recurse=False):
            buffer.copy_(found.get_buffer(name))
    return small


def _norms(model: nn.Module) -> list[_BatchNorm]:
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
