"""The preprocessing of libraries' models, against what the libraries' own transforms do to a photo."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from slimilar.deploy.model_names import parse
from slimilar.deploy.preprocessing import published_preprocessing
from slimilar.deploy.sources import build
from slimilar.utils.torchvision_compat import import_torchvision


def photo() -> Image.Image:
    drawn = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    return Image.fromarray(drawn).resize((330, 270), Image.Resampling.BICUBIC)


def prepared(name: str, size: tuple[int, int], weights: str | None = None) -> torch.Tensor:
    source = parse(name)
    model = build(source) if source.kind == "timm" else torch.nn.Identity()
    way = published_preprocessing(source, model, size, weights)
    assert way is not None
    return way.normalisation.apply(torch.from_numpy(np.asarray(way.prepared(photo())).copy())[None])


@pytest.mark.parametrize(
    ("file", "member"), [("resnet50-0676ba61.pth", "IMAGENET1K_V1"), (None, "IMAGENET1K_V2")]
)
def test_torchvision(file, member):
    weights = import_torchvision("torchvision.models").ResNet50_Weights[member]
    torch.testing.assert_close(
        prepared("torchvision:resnet50", (224, 224), file),
        weights.transforms()(photo())[None],
        rtol=0,
        atol=0.02,
    )


def test_timm():
    import_torchvision()
    import timm

    model = timm.create_model("resnet18")
    theirs = timm.data.create_transform(**timm.data.resolve_model_data_config(model), is_training=False)
    ours = prepared("timm:resnet18", (224, 224))
    torch.testing.assert_close(ours, theirs(photo())[None], rtol=0, atol=0.02)


def test_other_models_have_none():
    assert published_preprocessing(parse("slimilar:vgg16"), torch.nn.Identity(), (32, 32)) is None
