"""From a model to a smaller one: analyze() makes a plan, apply() carries it out, prune() does both.

`apply` is a function and no method of `Plan`: a plan is plain data, and what makes a model of it (reconstruction,
verification, measured time) lies above it.
"""

from slimilar.pipeline.analysis import analyze
from slimilar.pipeline.application import apply
from slimilar.pipeline.channel_removal import remove_channels
from slimilar.pipeline.pruning import prune
from slimilar.result import Result

__all__ = ["Result", "analyze", "apply", "prune", "remove_channels"]
