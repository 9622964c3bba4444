"""The one list of activations, and those who take theirs from it."""

from __future__ import annotations

import pytest
import torch

from slimilar.calibration.activations import SHAPES
from slimilar.graph.activations import ACTIVATIONS, POINTWISE, plain_name
from slimilar.graph.meta_shapes import shortcut
from slimilar.planning.cost import count

OPTIONS = {"threshold": (0.5, 0.0)}


@pytest.mark.parametrize("name", sorted(POINTWISE))
def test_pointwise_activations_keep_shape_and_cost_one_per_element(name: str) -> None:
    operator = getattr(torch.ops.aten, name)
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    args = (x, *OPTIONS.get(name, ()))
    given = operator(*args)
    alone = operator(x[1:, 2:], *OPTIONS.get(name, ()))
    assert given.shape == x.shape
    assert torch.equal(given[1:, 2:], alone), "each number by itself"
    quick = shortcut(
        f"aten.{name}", tuple(a.to("meta") if isinstance(a, torch.Tensor) else a for a in args), {}
    )
    assert quick is not None
    assert quick(x.to("meta")).shape == x.shape

    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = operator(x, *OPTIONS.get(name, ()))
            return result

    assert count(Layer(), x).flops == x.numel()


def test_the_table_of_integrals_is_a_part_of_the_list() -> None:
    assert set(SHAPES) - {"identity", "swish"} <= POINTWISE < ACTIVATIONS
    for spelling in ("ReLU", "relu_", "aten::relu", "aten.relu_.default"):
        assert plain_name(spelling) == "relu"
