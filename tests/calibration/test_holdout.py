"""Images are held out: no image is both fitted to and measured on."""

from __future__ import annotations

import pytest
import torch

from slimilar.calibration.divergence import divergence
from slimilar.calibration.holdout import hold_out


@pytest.mark.parametrize(("count", "size"), [(2, 2), (16, 16), (100, 10), (300, 128), (2048, 128)])
def test_no_image_is_in_both_parts(count: int, size: int) -> None:
    images = torch.arange(float(count))
    parts = hold_out(list(images.split(size)[: max(1, count // size)]))
    fit, measure = torch.cat(parts.fit), torch.cat(parts.measure)
    assert not set(fit.tolist()) & set(measure.tolist())
    assert len({len(b) for b in parts.fit}) == len({len(b) for b in parts.measure}) == 1
    assert parts.fitted >= parts.measured >= 1
    assert parts.fitted + parts.measured >= 0.9 * (count // size * size)


def test_a_single_image_can_only_be_fitted_to() -> None:
    parts = hold_out([torch.zeros(1, 3)])
    assert (parts.fitted, parts.measured) == (1, 0)


def test_every_output_counts_in_its_own_units() -> None:
    generator = torch.Generator().manual_seed(0)
    wanted = torch.randn(4, 3, 5, 5, generator=generator)
    given = wanted + 0.1 * torch.randn(4, 3, 5, 5, generator=generator)
    plain = divergence([given], [wanted])
    assert divergence([1000 * given + 7], [1000 * wanted + 7]) == pytest.approx(plain, rel=1e-3)
    assert divergence([given, given], [wanted, wanted]) == pytest.approx(2 * plain)
    scores = torch.randn(8, 10, generator=generator)
    assert divergence([scores], [scores]) == pytest.approx(0, abs=1e-9)
    assert 0 < divergence([scores + 0.1 * wanted[:1, 0, 0, :2].mean()], [2 * scores]) < 10
