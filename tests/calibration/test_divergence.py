"""How far outputs are from the original's: image by image, and in the mean."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from slimilar.calibration.divergence import divergence, divergence_by_image


def test_the_mean_over_images_is_the_divergence_of_all() -> None:
    torch.manual_seed(0)
    scores, maps = torch.randn(6, 5), torch.randn(6, 2, 4, 4)
    given = [scores + torch.randn(6, 5), maps + torch.randn(6, 2, 4, 4)]
    found = divergence_by_image(given, [scores, maps])
    assert found.shape == (6,)
    assert float(found.mean()) == pytest.approx(divergence(given, [scores, maps]))
    error = float(
        (given[1] - maps).square().sum() / (maps - maps.mean((0, 2, 3), keepdim=True)).square().sum()
    )
    assert divergence(given[1:], [maps]) == pytest.approx(error, rel=1e-5)


def test_an_image_that_is_answered_alike_adds_nothing() -> None:
    torch.manual_seed(0)
    wanted, given = torch.randn(4, 3, 2, 2), torch.randn(4, 3, 2, 2)
    given[2] = wanted[2]
    found = divergence_by_image([given], [wanted])
    assert float(found[2]) == 0
    assert (found[[0, 1, 3]] > 0).all()


def test_class_scores_are_compared_by_their_softened_answers() -> None:
    torch.manual_seed(0)
    wanted = torch.randn(8, 10)
    assert divergence([wanted + 3], [wanted]) == pytest.approx(0, abs=1e-6)  # the same answers
    uniform = divergence([torch.zeros(8, 10)], [wanted])
    assert uniform > divergence([0.9 * wanted], [wanted]) > 0


def test_outputs_with_other_numbers_of_entries_count_for_all_images_alike() -> None:
    wanted = [torch.arange(8.0).reshape(4, 1, 2), torch.tensor([1.0, 2.0]), torch.tensor(2.0)]
    given = [wanted[0], wanted[1] + 1, wanted[2] + 1]
    found = divergence_by_image(given, wanted)
    spread = float(functional.mse_loss(wanted[1], wanted[1].mean().expand(2)) * 2)
    assert torch.allclose(found, torch.full((4,), 2 / spread + 0.25, dtype=torch.float64))


def test_what_is_not_finite_is_as_bad_as_can_be() -> None:
    maps = torch.ones(2, 1, 3)
    assert divergence([maps * float("nan")], [maps]) == 1e6
