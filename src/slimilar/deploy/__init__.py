"""Deployment of pruned models: saved files, model sources, ONNX, runtimes, latency."""
