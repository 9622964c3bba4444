"""Horizontal flips as further calibration images."""

from __future__ import annotations

import torch
from torch import nn

from helpers.fitting import images
from slimilar.calibration.flips import with_flips
from slimilar.calibration.program import record
from slimilar.utils.modules import named_tensors


def test_mirror_images_go_in_where_a_network_takes_them_for_the_same() -> None:
    torch.manual_seed(0)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    sided = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 3))
    with torch.no_grad():
        sided[1].weight.zero_()
        sided[1].weight.view(3, 3, 8, 8)[[0, 1], 0, :, [0, -1]] = 1.0  # which side is brighter
    x = images(16)[:, :3, :8, :8]
    blind, seeing = (
        with_flips(list(x.split(8)), record(net, x[:8]), named_tensors(net)) for net in (head, sided)
    )
    assert torch.equal(torch.cat(blind), torch.cat([x, x.flip(-1)]))
    assert torch.equal(torch.cat(seeing), x)
    program, tensors = record(head, x[:8]), named_tensors(head)
    assert len(with_flips(blind, program, tensors)) == 4, "not twice"
    blank = torch.cat([torch.zeros_like(x[:1]), x[1:]])
    assert len(with_flips(list(blank.split(8)), program, tensors)) == 4, "a blank one says nothing"
