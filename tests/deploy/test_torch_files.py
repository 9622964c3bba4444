"""torch.export programs and TorchScript: read back, with the model's outputs."""

from __future__ import annotations

import warnings

import pytest
import torch

import slimilar
from helpers.small_networks import Mobile, images, trained
from slimilar.deploy.torch_files import export_torch


@pytest.mark.parametrize("suffix", [".pt2", ".ts"])
def test_a_pruned_model_is_read_back(tmp_path, suffix):
    small = slimilar.prune(trained(Mobile()), images(1), flops=0.6).model.eval()
    done = export_torch(small, tmp_path / f"small{suffix}", images(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, and still in use
        loaded = torch.export.load(done.path).module() if suffix == ".pt2" else torch.jit.load(str(done.path))
    x = torch.randn(3, *images(1).shape[1:])
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), small(x), rtol=1e-4, atol=1e-5)
    assert done.bytes == done.path.stat().st_size
