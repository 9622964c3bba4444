"""The parts of the benchmark of tasks: what each task needs and how it is scored, and the table."""
