"""The parts of `benchmarks/zoo.py`: what is tried, how one model is tried, how the table is made."""
