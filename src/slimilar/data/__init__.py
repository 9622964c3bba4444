"""Datasets: CIFAR, folders of pictures, the shipped demo pictures, and any PyTorch dataset."""

from __future__ import annotations

from slimilar.data.cifar import cifar
from slimilar.data.demo import demo_pictures
from slimilar.data.folder import PictureFiles, image_folder, unlabelled
from slimilar.data.named import dataset
from slimilar.data.pictures import Normalisation, Pictures
from slimilar.data.source import Samples, Source

__all__ = [
    "Normalisation",
    "PictureFiles",
    "Pictures",
    "Samples",
    "Source",
    "cifar",
    "dataset",
    "demo_pictures",
    "image_folder",
    "unlabelled",
]
