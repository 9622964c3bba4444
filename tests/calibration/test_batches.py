"""Images to fit to: those given, their horizontal flips, and those made from a network itself."""

from __future__ import annotations

import pytest
import torch

import slimilar
from helpers.fitting import images, small_net
from slimilar.calibration.batches import to_batches
from slimilar.errors import InvalidInput


@pytest.mark.parametrize("once", [True, False])
def test_calibration_is_gone_through_once(once: bool) -> None:
    """A generator has no second pass, and a loader that shuffles would show choice and fit different images."""
    net, x = small_net(), images(12)
    passes: list[int] = []

    class Shuffling:
        def __iter__(self):
            passes.append(len(passes))
            yield from x.roll(len(passes) - 1, 0).split(4)

    given = iter(Shuffling()) if once else Shuffling()
    result = slimilar.prune(net, x[:1], flops=0.6, calibration=given)
    expected = slimilar.prune(net, x[:1], flops=0.6, calibration=x)
    assert passes == [0]
    for a, b in zip(result.model.parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_calibration_takes_tensors_loaders_and_labelled_batches() -> None:
    x = images(20)
    wanted = to_batches(x, x[:1], 8)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, torch.zeros(20, dtype=torch.long)), batch_size=5
    )
    assert all(torch.equal(a, b) for a, b in zip(to_batches(loader, x[:1], 8), wanted, strict=True))
    assert len(to_batches(x, x[:1], 8, most=8)) == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (torch.zeros(4, 3, 5, 5), "shape of the example"),
        (torch.zeros(4, 3, 12, 12, dtype=torch.uint8), "floating point"),
        (torch.full((4, 3, 12, 12), float("nan")), "finite"),
        ([], "at least one batch"),
        (["a.png"], "tensor, got str"),
        ("synthesise", '"synthesize"'),
        (7, "got int"),
    ],
)
def test_bad_calibration_gets_one_clear_sentence(given: object, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        slimilar.prune(small_net(), images(1), flops=0.8, calibration=given)
