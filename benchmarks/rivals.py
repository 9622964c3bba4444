"""Two published ways to keep accuracy without training, from their papers' equations, on this library's trace.

Model Folding (ICLR 2025): k-means on a layer's filters (batch norm folded in), each cluster replaced by its mean, the
consumers' kernels summed, and the variance that averaging takes away repaired in closed form. No data.
GRAIL (2026): channels by magnitude, the same share in every layer, then ridge regression on the Gram matrix of the
consumer's input, channel by channel, from unlabelled images.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

import numpy as np
import torch
from _accuracy.images import Task
from torch import Tensor, nn

import slimilar
from slimilar.calibration.consumers import find_consumers
from slimilar.calibration.program import program_of
from slimilar.criteria import Ranking, Weights
from slimilar.graph.groups import ChannelGroup
from slimilar.planning.cut import Cut
from slimilar.reconstruction.least_squares import Settings, fit_consumers
from slimilar.reconstruction.reconstruct import rebuild
from slimilar.similarity.removal_order import RemovalOrder
from slimilar.surgery.rewrite import operate, surgery
from slimilar.utils.modules import named_tensors


@dataclass(frozen=True)
class OneRatio:
    """Magnitude, the same share of every layer; where all layers would lose a channel at once, by turns."""

    name: str = "one-ratio"

    def orders(self, groups: Sequence[ChannelGroup], weights: Weights) -> list[RemovalOrder | str]:
        found = Ranking("magnitude-l2").orders(groups, weights)
        return [
            o if isinstance(o, str) else replace(o, heights=o.heights + 1e-4 * i / len(found))
            for i, o in enumerate(found)
        ]


def _cut(task: Task, flops: float) -> tuple[slimilar.Plan, Cut]:
    plan = slimilar.analyze(task.model, task.example, criterion=OneRatio())
    return plan, plan.at(flops=flops, round_to=1)


def grail(task: Task, flops: float) -> nn.Module:
    """Magnitude, one ratio, then ridge on the Gram matrix."""
    plan, cut = _cut(task, flops)
    model, structure, batches = task.model, plan.structure, list(task.calibration.split(128))
    program = program_of(model, task.example, structure, len(batches[0]))
    consumers = find_consumers(program.trace, structure.grouping, program)
    settings = Settings(form="mix", correct_stream=False, polish=False)
    tensors = {n: t.detach() for n, t in named_tensors(model).items()}
    network = fit_consumers(program, consumers, tensors, cut.mask, batches, settings)
    done = surgery(structure.trace, structure.grouping, cut.mask)
    return rebuild(model, network, consumers, done)[0].eval()


def folding(task: Task, flops: float) -> nn.Module:
    """Model Folding with its data-free variance repair, the same share of every layer."""
    plan, cut = _cut(task, flops)
    folded = copy.deepcopy(task.model)
    mask = cut.mask.copy()
    starts = dict(
        zip((g.name for g in plan.structure.grouping.groups), plan.structure.grouping.offsets, strict=True)
    )
    with torch.no_grad():
        for group in plan.groups:
            kept = _fold(folded, group, cut.widths[group.name])
            mask[starts[group.name] : starts[group.name] + group.width] = kept
    return operate(folded, surgery(plan.structure.trace, plan.structure.grouping, mask)).eval()


class _Writer(Protocol):
    """A convolution or a linear layer."""

    weight: Tensor
    bias: Tensor | None


class _Norm(Protocol):
    """A batch norm that has weights and statistics."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor
    eps: float


def _fold(model: nn.Module, group: ChannelGroup, width: int) -> np.ndarray:
    """Cluster one group's filters, put each cluster's mean in the place of its first member; return who stays."""
    conv = cast(_Writer, model.get_submodule(group.name))
    norm = cast(_Norm, model.get_submodule(group.batch_norms[0].module))
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    shift = norm.bias - norm.running_mean * scale
    if conv.bias is not None:
        shift = shift + conv.bias * scale
    filters = conv.weight.flatten(1) * scale[:, None]
    points = torch.cat([filters, shift[:, None]], 1).double().numpy()
    label = clusters(points, width)
    kept = np.zeros(len(label), np.bool_)
    for c in range(width):
        members = np.flatnonzero(label == c)
        kept[members[0]] = True
        _merge(model, group, conv, norm, members, filters, shift)
    return kept


def clusters(points: np.ndarray, width: int) -> np.ndarray:
    """Label every row with one of exactly `width` clusters by k-means, none of them empty.

    K-means may leave a cluster empty, as when rows are equal; the cut would then be narrower than was asked. Such a
    cluster gets the row that is farthest from the mean of its own, of those that are not alone there.
    """
    from sklearn.cluster import KMeans

    found = KMeans(width, n_init=10, random_state=0).fit(points)
    label: np.ndarray = found.labels_.copy()
    away = np.linalg.norm(points - found.cluster_centers_[label], axis=1)
    for empty in np.setdiff1d(np.arange(width), label):
        alone = np.bincount(label, minlength=width)[label] == 1
        label[np.where(alone, -1, away).argmax()] = empty
    return label


def _merge(
    model: nn.Module,
    group: ChannelGroup,
    conv: _Writer,
    norm: _Norm,
    members: np.ndarray,
    filters: Tensor,
    shift: Tensor,
) -> None:
    first, rows = int(members[0]), filters[members]
    unit = torch.nn.functional.normalize(rows, dim=1)
    n = len(members)
    alike = ((unit @ unit.T).sum() - n) / max(1, n * n - n) if n > 1 else torch.tensor(1.0)
    repair = (
        n / (n + (n * n - n) * alike.clamp(0, 1)).sqrt() if n > 1 else 1.0
    )  # averaging shrinks the spread
    conv.weight[first] = (rows.mean(0) * repair).reshape(conv.weight[first].shape)
    norm.weight[first], norm.bias[first] = (norm.running_var[first] + norm.eps).sqrt(), shift[members].mean()
    norm.running_mean[first] = 0 if conv.bias is None else conv.bias[first]
    for consumer in group.consumers:
        assert consumer.weight is not None
        weight = model.get_parameter(consumer.weight)
        places = [int(consumer.weight_index[p]) for u in members for p in np.flatnonzero(consumer.units == u)]
        weight[:, places[0]] = weight[:, places].sum(1)


def torch_pruning(task: Task, flops: float) -> nn.Module:
    """Torch-Pruning's magnitude pruner, inner channels, told the widths of one ratio for every layer."""
    import torch_pruning as tp

    plan, cut = _cut(task, flops)
    twin = copy.deepcopy(task.model)
    ratios = {twin.get_submodule(g.name): 1 - cut.widths[g.name] / g.width for g in plan.groups}
    layers = [m for m in twin.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    pruner = tp.pruner.MagnitudePruner(
        twin,
        task.example,
        importance=tp.importance.MagnitudeImportance(p=2),
        pruning_ratio=0.0,
        pruning_ratio_dict=ratios,
        ignored_layers=[m for m in layers if m not in ratios],
    )
    pruner.step()
    return twin.eval()
