"""Slim by similarity: channel pruning for CNNs."""

__version__ = "0.1.0"
