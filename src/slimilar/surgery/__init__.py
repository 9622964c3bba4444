"""Build the smaller model and prove it: probe, rewrite, masking, verify."""
