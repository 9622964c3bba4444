"""One small converter for each ONNX operator: from a node of the file to a torch module."""

from slimilar.deploy.onnx_files.operators import layers, moving, pointwise, pooling
from slimilar.deploy.onnx_files.operators.table import CONVERTERS, Built, OnnxConstant, OnnxNode, Unreadable

__all__ = [
    "CONVERTERS",
    "Built",
    "OnnxConstant",
    "OnnxNode",
    "Unreadable",
    "layers",
    "moving",
    "pointwise",
    "pooling",
]
