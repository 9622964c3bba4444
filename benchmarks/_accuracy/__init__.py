"""The parts of the accuracy benchmark: images, methods, rows and the table."""
