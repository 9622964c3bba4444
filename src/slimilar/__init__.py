"""Slim by similarity: make a pre-trained CNN smaller and faster by keeping one channel of every kind."""

from slimilar.cost import Cost, count
from slimilar.errors import SlimilarError
from slimilar.plan import Plan
from slimilar.prune import Result, analyze, prune, remove_channels

__all__ = ["Cost", "Plan", "Result", "SlimilarError", "analyze", "count", "prune", "remove_channels"]
__version__ = "0.1.0"
