"""The names of EfficientNet-Lite0's tensors: every one of timm's is the image of one name of the package."""

from __future__ import annotations

import efficientnet_lite0 as lite0

from slimilar.models import CHECKPOINTS

LAYERS = {
    "expand_conv": ("weight",),
    "depthwise_conv": ("weight",),
    "project_conv": ("weight",),
    **dict.fromkeys(
        ("bn0", "bn1", "bn2"), ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    ),
}


def test_names_are_those_of_timm():
    blocks = [(i, layer, leaf) for i in range(16) for layer, leaves in LAYERS.items() for leaf in leaves]
    first = {"expand_conv", "bn0"}  # the first block does not expand
    package = [f"_blocks.{i}._{layer}.{leaf}" for i, layer, leaf in blocks if i or layer not in first]
    package += [f"_conv_{part}.weight" for part in ("stem", "head")]
    package += [f"_{norm}.{leaf}" for norm in ("bn0", "bn1") for leaf in LAYERS["bn0"]]
    package += ["_fc.weight", "_fc.bias"]
    named = [lite0.timm_name(name) for name in package]
    assert len(set(named)) == len(named)
    assert set(named) == set(CHECKPOINTS[lite0.NAME].build().state_dict())


def test_projections_reduce_to_the_width_of_their_stage():
    """A name may be timm's and still be that of another layer."""
    state = CHECKPOINTS[lite0.NAME].build().state_dict()
    widths = [16, 24, 24, 40, 40, 80, 80, 80, 112, 112, 112, 192, 192, 192, 192, 320]
    assert [len(state[lite0.timm_name(f"_blocks.{i}._project_conv.weight")]) for i in range(16)] == widths
