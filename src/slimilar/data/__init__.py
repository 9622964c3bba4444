"""Datasets: CIFAR, picture folders, the shipped demo pictures, and any PyTorch dataset."""

from __future__ import annotations

from slimilar.data.cifar import cifar
from slimilar.data.pictures import Normalisation, Pictures
from slimilar.data.source import Samples, Source

__all__ = ["Normalisation", "Pictures", "Samples", "Source", "cifar"]
