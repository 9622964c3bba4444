"""The parts of the fine-tuning benchmark: starts, tunings and the table."""
