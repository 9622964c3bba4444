"""From a pruned model to where it runs: files, model sources, ONNX, runtimes, latency."""
