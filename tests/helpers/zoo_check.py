"""The check that every architecture of a zoo must pass: trace, prune, verify, count, train one step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import slimilar
from slimilar.errors import UnreachableBudget
from slimilar.pipeline import apply
from slimilar.utils.pytree import arguments, tensors_in


def look_trained(model: nn.Module) -> nn.Module:
    """Give every batch norm random statistics and parameters, as after training."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if getattr(module, "running_var", None) is not None:
            for name, low in (("running_var", 0.5), ("running_mean", -0.5), ("weight", 0.5), ("bias", -0.5)):
                held = getattr(module, name, None)
                if held is not None:
                    held.data.copy_(torch.rand(held.shape, generator=generator) + low)
    return model.eval()


def check(model: nn.Module, example: Any, flops: float = 0.6, train: bool = True) -> nn.Module:
    """Prune a model as far as asked, or as far as possible, and return the smaller one."""
    model = look_trained(model)
    plan = slimilar.analyze(model, example, residual="joint")
    try:
        cut = plan.at(flops=flops)
    except UnreachableBudget:
        cut = plan.at(threshold=1.0)
    result = apply(model, example, plan, cut, reconstruction="none")
    assert cut.flops < cut.before.flops
    assert result.error is not None
    assert result.error < 1e-4
    recount = slimilar.count(result.model, example)
    assert (recount.flops, recount.macs, recount.params) == (cut.flops, cut.macs, cut.params)
    if train:
        train_step(result.model, example)
    return result.model


def train_step(model: nn.Module, example: Any) -> None:
    """Every parameter that is used gets a gradient."""
    args, kwargs = arguments(example)
    outs = [t for t in tensors_in(model.train()(*args, **kwargs)) if t.is_floating_point()]
    torch.stack([t.float().square().mean() for t in outs]).sum().backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    assert grads
    assert all(g.isfinite().all() for g in grads)
    model.zero_grad()
    model.eval()
