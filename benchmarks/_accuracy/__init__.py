"""The parts of the accuracy benchmark: pictures, methods, rows and the table."""
