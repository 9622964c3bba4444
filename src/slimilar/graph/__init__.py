"""Follow every channel through one forward pass: labels, tracer, rules, channel groups."""
