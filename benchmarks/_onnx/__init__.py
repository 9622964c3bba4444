"""Parts of the benchmark on ONNX files: images, and how answers are compared."""
