r"""Proposition 2 on real layers: how far the next layer moves when a channel leaves and its nearest one stands in.

$$\frac{1}{n_{l+1}} \lVert (h(N_i) - h(N_j)) * W_{ic} \rVert^2 \le \lambda_{ci} \min_j d_{ij},
\qquad \lambda_{ci} = \frac{n_l}{n_{l+1}} K^2 \lVert W_{ic} \rVert_2^2$$

A max pool between the two layers changes nothing: the largest of four values moves no more than all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.experiment import LABELS, ExperimentRun, TrainedNetwork
from experiments.figures import BLUE, GREY, ORANGE, canvas
from experiments.paper import TYPICAL_LAMBDA
from experiments.tables import table as markdown
from slimilar.similarity.distances import activation_distance, channel_distance, shift_bound
from slimilar.utils.row_ledger import RowLedger


@dataclass(frozen=True)
class BoundSettings:
    """Networks and how many of their calibration images are looked at."""

    networks: tuple[str, ...]
    images: int


SETTINGS = {
    "paper": BoundSettings(("vgg16-cifar10-full", "preresnet110-cifar10", "resnet50-imagenet"), 256),
    "medium": BoundSettings(("vgg16-cifar10", "resnet20-cifar10", "resnet56-cifar10"), 256),
    "small": BoundSettings(
        ("vgg16-cifar10", "resnet56-cifar10", "resnet56-cifar100", "resnet50-imagenet"), 32
    ),
    "tiny": BoundSettings(("demo",), 8),
}
QUANTILES = (0.05, 0.5, 0.95)


def trains(_settings: BoundSettings) -> bool:
    """Tell whether networks are trained, so that rows depend on the recipe."""
    return False


def run(experiment: ExperimentRun) -> None:
    """Measure every pair of batch norm and convolution with nothing but an activation (and pooling) in between."""
    for name in experiment.settings.networks:
        experiment.ledger.row({"network": name}, partial(_network, experiment, name))


def _network(experiment: ExperimentRun, name: str) -> dict[str, Any]:
    """Measure in one pass: when a convolution runs, the batch norm in front of it has just run."""
    network = experiment.network(name)
    held: dict[str, Tensor] = {}
    found: list[dict[str, Any]] = []
    hooks = []
    for norm, conv in pairs(network):
        before, consumer = network.model.get_submodule(norm), network.model.get_submodule(conv)

        def keep(_module: nn.Module, _inputs: Any, out: Tensor, norm: str = norm) -> None:
            held[norm] = out.clone()  # an activation that works in place comes right behind it

        def look(
            module: nn.Module,
            inputs: tuple[Tensor, ...],
            out: Tensor,
            norm: str = norm,
            before: nn.Module = before,
        ) -> None:
            found.append({"norm": norm, **measure(held.pop(norm), inputs[0], out, module, before)})

        hooks += [before.register_forward_hook(keep), consumer.register_forward_hook(look)]
    try:
        with torch.inference_mode():
            network.model(network.images[: experiment.settings.images])
    finally:
        for hook in hooks:
            hook.remove()
    return {"layers": found}


def pairs(network: TrainedNetwork) -> list[tuple[str, str]]:
    """Return which batch norm is read by which convolution alone."""
    modules = dict(network.model.named_modules())
    norms = [n for n, m in modules.items() if isinstance(m, nn.BatchNorm2d)]
    convs = [n for n, m in modules.items() if isinstance(m, nn.Conv2d)]
    if not network.name.startswith(("resnet", "preresnet")):  # a plain chain
        return list(zip(norms[:-1], convs[1:], strict=True))
    ahead = network.name.startswith("preresnet")  # bn2 stands before conv2 there, behind it otherwise
    found = []
    for norm in norms:
        block, _, last = norm.rpartition(".")
        if not (block.startswith("layer") and last.startswith("bn")):
            continue
        conv = f"{block}.conv{int(last[2:]) + (0 if ahead else 1)}"
        if conv in convs and not (ahead and last == "bn1"):  # bn1 of such a block reads the shared stream
            found.append((norm, conv))
    return found


def measure(before: Tensor, read: Tensor, after: Tensor, conv: Any, norm: Any) -> dict[str, Any]:
    """Return shift, bound and lambda of every removed channel (in) and every one of the next layer (out)."""
    n_in, n_out = (t[:, 0].numel() for t in (before, after))
    distance = activation_distance(before)
    expected = channel_distance(norm.bias, norm.weight)
    factor, bound = shift_bound(conv.weight, distance, n_in, n_out)
    by_norm = shift_bound(conv.weight, expected, n_in, n_out).bound
    nearest = distance.clone().fill_diagonal_(torch.inf).argmin(1)
    shift = shifts(read, nearest, conv)
    power = after.double().var(dim=(0, 2, 3))[:, None]
    return {
        "channels": len(nearest),
        "next": conv.out_channels,
        "lambda": _quantiles(factor),
        "tightness": _quantiles(shift / bound.clamp_min(1e-30)),
        "relative": _quantiles(shift / power),
        "above": int((shift > bound * (1 + 1e-6) + 1e-12).sum()),
        "above_by_norm": int((shift > by_norm).sum()),
        "pairs": shift.numel(),
    }


def shifts(read: Tensor, nearest: Tensor, conv: Any) -> Tensor:
    r"""Return the mean square of $(h(N_i) - h(N_j)) * W_{ic}$, j the nearest of i, of shape (out, in).

    It is a quadratic form of the kernel in the second moments of the difference's patches: 9 x 9 numbers a channel.
    """
    shift = torch.zeros(conv.out_channels, conv.in_channels, dtype=torch.float64)
    for i, j in enumerate(nearest.tolist()):
        delta = (read[:, i] - read[:, j])[:, None].double()
        patches = F.unfold(delta, conv.kernel_size, conv.dilation, conv.padding, conv.stride)
        rows = patches.movedim(1, 0).flatten(1)
        kernel = conv.weight[:, i].detach().double().flatten(1)
        shift[:, i] = ((kernel @ (rows @ rows.T)) * kernel).sum(1) / rows.shape[1]
    return shift


def _quantiles(values: Tensor) -> list[float]:
    return [float(f"{v:.4g}") for v in np.quantile(values.numpy(), QUANTILES)]


def table(ledger: RowLedger) -> str:
    """Return a line for every network."""
    rows = []
    for row in ledger.rows:
        layers = row["layers"]
        pairs_seen = sum(layer["pairs"] for layer in layers)
        medians = {
            k: np.median([layer[k][1] for layer in layers]) for k in ("lambda", "tightness", "relative")
        }
        spread = [min(layer["lambda"][0] for layer in layers), max(layer["lambda"][2] for layer in layers)]
        rows.append(
            [LABELS[row["network"]], len(layers), f"{pairs_seen:,}", f"{medians['lambda']:.1e}",
             f"{spread[0]:.0e} to {spread[1]:.0e}", f"{medians['tightness']:.2f}",
             f"{100 * medians['relative']:.1f} %", sum(layer["above"] for layer in layers),
             f"{100 * sum(layer['above_by_norm'] for layer in layers) / pairs_seen:.2f} %"]
        )  # fmt: skip
    head = ["network", "layers", "pairs of channels", "lambda, median", "lambda, 5 % to 95 % of any layer",
            "shift / bound, median", "shift / variance of the next layer", "above the bound",
            "above the bound by Eq. 4"]  # fmt: skip
    words = (
        f"The paper: lambda 'is typically a small value of magnitude ~ 1e-2' ({TYPICAL_LAMBDA:g}), and the bound holds "
        "always. Medians are over the layers' medians. The bound is a theorem for the distance that was measured on "
        "the same images (Eq. 1); with the distance by batch norm (Eq. 4) it is an estimate, and may be passed."
    )
    return f"{markdown(head, rows)}\n\n{words}"


def figures(ledger: RowLedger) -> dict[str, Any]:
    """Draw lambda, and the measured shift as a share of the bound, layer by layer."""
    count = len(ledger.rows)
    figure, axes = canvas(2, count, width=2.2 * count + 1.2, height=4.2, sharey="row", sharex="col")
    for column, row in enumerate(ledger.rows):
        layers = row["layers"]
        x = np.arange(1, len(layers) + 1)
        for axis, name, colour in ((axes[0, column], "lambda", BLUE), (axes[1, column], "tightness", ORANGE)):
            low, middle, high = np.array([layer[name] for layer in layers]).T.clip(1e-9)
            axis.vlines(x, low, high, color=colour, alpha=0.3, lw=2)
            axis.plot(x, middle, color=colour, lw=0, marker="o", ms=3)
            axis.set_yscale("log")
        axes[0, column].axhline(TYPICAL_LAMBDA, color=GREY, lw=0.8, ls=":")
        axes[1, column].axhline(1, color=GREY, lw=0.8, ls=":")
        axes[0, column].set_title(LABELS[row["network"]].replace(", ", "\n"))
        axes[1, column].set_xlabel("layer")
        axes[1, column].xaxis.get_major_locator().set_params(integer=True)
    axes[0, 0].set_ylim(1e-6, 10)
    axes[1, 0].set_ylim(1e-3, 3)
    axes[0, count // 2].text(
        1, TYPICAL_LAMBDA / 1.3, "the paper: about 0.01", fontsize=7.5, color=GREY, va="top"
    )
    axes[1, 0].text(1, 1.15, "the bound", fontsize=7.5, color=GREY)
    axes[0, 0].set_ylabel("lambda: median,\n5 to 95 %")
    axes[1, 0].set_ylabel("measured shift / bound:\nmedian, 5 to 95 %")
    return {"": figure}
