"""Masks: the channels that were removed are zero wherever an operator reads them, and nowhere else."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from slimilar.surgery.masking import Masked, masks_of, recurrent
from slimilar.surgery.probe import find_structure

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Branches(nn.Module):
    """One layer that two others read."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 2, 1), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.a(x).sigmoid()
        return self.b(x), self.c(x.mean((2, 3)))


def test_consumers_read_zeros_where_channels_were_removed() -> None:
    torch.manual_seed(1)
    net = Branches().eval()
    structure = find_structure(net, X)
    kept = np.ones(structure.grouping.unit_count, np.bool_)
    kept[[0, 5]] = False
    run = Masked(masks_of(net, structure.trace, structure.grouping, kept))
    with torch.no_grad(), run:
        found = net(X)
    with torch.no_grad():
        hidden = net.a(X).sigmoid()
        hidden[:, [0, 5]] = 0  # by hand: sigmoid(0) is not zero, so masking the producer would not do
        expected = net.b(hidden), net.c(hidden.mean((2, 3)))
    assert run.complete
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_run_that_does_not_pass_a_consumer_is_incomplete() -> None:
    net = Branches().eval()
    structure = find_structure(net, X)
    kept = np.ones(structure.grouping.unit_count, np.bool_)
    kept[0] = False
    run = Masked(masks_of(net, structure.trace, structure.grouping, kept))
    with torch.no_grad(), run:
        net.a(X)
    assert not run.complete


def test_recurrent_layers_are_masked_as_a_whole() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.layer = nn.Linear(4, 6), nn.LSTM(6, 3, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.a(x))[0]

    torch.manual_seed(1)
    net, x = Net().eval(), torch.randn(2, 5, 4)
    structure = find_structure(net, x)
    kept = np.ones(structure.grouping.unit_count, np.bool_)
    group = next(g for g, group in enumerate(structure.grouping.groups) if group.name == "a")
    kept[structure.grouping.offsets[group]] = False
    run = Masked(masks_of(net, structure.trace, structure.grouping, kept))
    assert list(recurrent(net)) == ["layer"]
    with torch.no_grad(), run.inside(recurrent(net)), run:
        found = net(x)
    with torch.no_grad():
        hidden = net.a(x)
        hidden[..., 0] = 0
        torch.testing.assert_close(found, net.layer(hidden)[0])
    assert run.complete
