"""Small helpers that know nothing about pruning."""
