"""One small converter for each ONNX operator: from a node of the file to a torch module."""

from slimilar.deploy.onnx_files.operators import layers, moving, pointwise, pooling
from slimilar.deploy.onnx_files.operators.table import CONVERTERS, Built, Constant, Node, Unreadable

__all__ = [
    "CONVERTERS",
    "Built",
    "Constant",
    "Node",
    "Unreadable",
    "layers",
    "moving",
    "pointwise",
    "pooling",
]
