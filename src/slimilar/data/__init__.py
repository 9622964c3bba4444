"""Datasets: CIFAR, folders of images, the shipped demo images, and any PyTorch dataset."""

from __future__ import annotations

from slimilar.data.cifar import cifar
from slimilar.data.demo import demo_images
from slimilar.data.folder import ImageFiles, image_folder, unlabelled
from slimilar.data.images import Images, Normalisation
from slimilar.data.named import dataset
from slimilar.data.preprocessing import Preprocessing
from slimilar.data.source import DatasetSource, ImageSource, UnlabelledImages

__all__ = [
    "DatasetSource",
    "ImageFiles",
    "ImageSource",
    "Images",
    "Normalisation",
    "Preprocessing",
    "UnlabelledImages",
    "cifar",
    "dataset",
    "demo_images",
    "image_folder",
    "unlabelled",
]
