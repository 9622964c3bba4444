"""Networks that answer zeros: a verification must see what lies behind, or say that it saw nothing."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import slimilar
from slimilar.errors import SlimilarWarning, VerificationError
from slimilar.surgery.fault import verify_rewrite
from slimilar.surgery.probe import find_structure
from slimilar.surgery.rewrite import operate, surgery

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def with_a_head_of_zeros() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 1), nn.Flatten(), nn.Linear(216, 4))
    nn.init.zeros_(net[4].weight)
    nn.init.zeros_(net[4].bias)
    return net.eval()


def test_a_fault_behind_zeros_is_found() -> None:
    net = with_a_head_of_zeros()
    structure = find_structure(net, X)
    kept = torch.ones(structure.grouping.unit_count, dtype=torch.bool).numpy()
    kept[[1, 9]] = False
    small = operate(net, surgery(structure.trace, structure.grouping, kept))
    assert verify_rewrite(net, small, X, structure, kept) < 1e-4
    with torch.no_grad():
        small[2].weight[:, 0] += 1
    torch.testing.assert_close(small(X), net(X))  # both answer zeros
    with pytest.raises(VerificationError, match="differ"):
        verify_rewrite(net, small, X, structure, kept)


@pytest.mark.parametrize("images", [None, torch.randn(32, 3, 8, 8)])
def test_no_warning_where_something_was_compared(images: Tensor | None) -> None:
    net = with_a_head_of_zeros()
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlimilarWarning)
        result = slimilar.prune(net, X, ratio=0.5, criterion="magnitude-l2", calibration=images)
    assert not result.model[4].weight.any()  # the random numbers were for the verification alone
    assert result.error is not None
    assert result.error < 1e-4


class Silent(nn.Module):
    """Code that throws away what it has computed."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x)) * 0


def test_a_verification_that_compared_zeros_says_so() -> None:
    with pytest.warns(SlimilarWarning, match="could not be verified: on random input all outputs"):
        slimilar.prune(Silent().eval(), X, ratio=0.5, criterion="magnitude-l2", reconstruction="none")
