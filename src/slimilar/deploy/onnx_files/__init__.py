"""ONNX files as models: read one, prune it like any module, write the result into the graph it came from."""

from slimilar.deploy.onnx_files.module import OnnxModule
from slimilar.deploy.onnx_files.reader import load_onnx
from slimilar.deploy.onnx_files.writer import rewritten

__all__ = ["OnnxModule", "load_onnx", "rewritten"]
