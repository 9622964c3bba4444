"""What odd widths, thin layers and channel selections cost: the numbers behind rounding and export.

    python benchmarks/widths.py > benchmarks/results/widths.txt

One thread. First, how much longer layers of 64 + m channels take than layers of 64 and 96 let expect. Second, residual
blocks and 1x1 convolutions in ONNX Runtime with fewer and fewer inner channels. Third, pre-activation blocks that
select channels of their stream, by a Gather or by weights of zero. Models of a row take turns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from _results import print_header
from torch import Tensor, nn

from slimilar.deploy import onnx_selections
from slimilar.deploy.latency import Run, measure
from slimilar.deploy.layer_times import layer_timer
from slimilar.deploy.rounding_measurement import penalties, smallest_liked
from slimilar.deploy.runtimes import available, onnxruntime
from slimilar.surgery.channel_selection import select_from

SECONDS, SEED = 0.5, 0


def multiples() -> None:
    """Print what a runtime takes for widths beside its liking."""
    print(
        "\ntime of 64 + m channels / time expected from 64 and 96, median of a 1x1, a 3x3 and a depthwise layer"
    )
    print(f"{'runtime':<12} " + " ".join(f"{f'm = {m}':>7}" for m in (1, 2, 4, 8, 16)) + "  liked")
    for runtime in ("onnxruntime", "openvino", "pytorch"):
        timer = layer_timer(runtime, torch.device("cpu"))
        if timer is not None and runtime in available():
            found = penalties(timer)
            print(
                f"{runtime:<12} "
                + " ".join(f"{x:>7.2f}" for x in found.values())
                + f"  {smallest_liked(found)}"
            )


def blocks(inner: int, outer: int, kernel: int) -> nn.Module:
    """Return four pairs of convolutions with so many channels between."""
    conv = partial(nn.Conv2d, kernel_size=kernel, padding=kernel // 2)
    pairs = [m for _ in range(4) for m in (conv(outer, inner), nn.ReLU(), conv(inner, outer), nn.ReLU())]
    return nn.Sequential(nn.Conv2d(3, outer, 3, padding=1), nn.ReLU(), *pairs).eval()


def thin() -> None:
    """Print what thin groups save."""
    print(
        "\nonnxruntime, time of four pairs of convolutions by their inner channels, as a share of the first"
    )
    for outer, kernel, side, widths in (
        (16, 3, 32, (16, 12, 8, 4)),
        (32, 3, 32, (32, 24, 16, 8)),
        (96, 1, 56, (32, 24, 16, 8)),
    ):
        x = torch.randn(1, 3, side, side)
        runs = {str(w): onnxruntime(blocks(w, outer, kernel), x) for w in widths}
        cells = _shares(runs, str(widths[0]))
        print(f"{kernel}x{kernel}, {outer} outer channels, {side} x {side}: {cells}", flush=True)


class Selecting(nn.Module):
    """Four pre-activation blocks, each of which reads some channels of the stream."""

    def __init__(self, stream: int, selected: int, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, stream, 3, padding=1)
        self.branches = nn.ModuleList(self._branch(stream, selected, width) for _ in range(4))

    @staticmethod
    def _branch(stream: int, selected: int, width: int) -> nn.Module:
        norm = select_from(nn.BatchNorm2d(selected), torch.randperm(stream)[:selected].sort().values)
        return nn.Sequential(
            norm, nn.ReLU(), nn.Conv2d(selected, width, 1), nn.ReLU(), nn.Conv2d(width, stream, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean of every channel of the stream."""
        x = self.stem(x)
        for branch in self.branches:
            x = x + branch(x)
        return x.mean((2, 3))


def selections() -> None:
    """Print what absorbing a selection saves, over the work it adds."""
    print("\nonnxruntime, four blocks that select channels, 32 x 32: time without Gather / time with it")
    for stream, selected, width in ((64, 32, 16), (128, 96, 32), (64, 16, 16), (128, 64, 64), (64, 16, 64)):
        net, x = Selecting(stream, selected, width).eval(), torch.randn(1, 3, 32, 32)
        runs = {name: _exported(net, x, limit) for name, limit in (("Gather", 0.0), ("zeros", float("inf")))}
        added = width * (stream - selected) / selected
        timings = measure(runs, seconds=SECONDS)
        ratio = timings.ratio("zeros", "Gather")
        print(
            f"{selected} of {stream}, {width} behind (+{added:.0f} multiply-adds a value): {ratio}",
            flush=True,
        )


def _exported(net: nn.Module, x: Tensor, limit: float) -> Run:
    usual, onnx_selections.COPY = onnx_selections.COPY, limit
    try:
        return onnxruntime(net, x)
    finally:
        onnx_selections.COPY = usual


def _shares(runs: dict[str, Run], first: str) -> str:
    timings = measure(runs, seconds=SECONDS)
    return ", ".join(f"{name}: {timings.ratio(name, first).value:.2f}" for name in runs)


def main() -> None:
    """Print the three tables."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    print_header("python benchmarks/widths.py", SEED)
    parts: tuple[Callable[[], None], ...] = (multiples, thin, selections)
    for part in parts:
        part()


if __name__ == "__main__":
    main()
