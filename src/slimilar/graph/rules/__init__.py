"""The table: ATen operator -> how channel labels pass through it.

A rule is a small function `(policy, call) -> labels of each output`. It may *tie* channels that have to leave
together, *bind* those that the code is assumed to treat alike, *freeze* channels that cannot leave, and note who
writes and who reads them. What is not in the table is frozen by `apply`, with the operator's name as the reason. A
new operator is one entry and one test.
"""

from slimilar.graph.rules.cutting import slice_, split, split_with_sizes
from slimilar.graph.rules.elementwise import elementwise
from slimilar.graph.rules.held_sizes import held_integers
from slimilar.graph.rules.joining import cat, constant_pad
from slimilar.graph.rules.moving import move, view, viewed
from slimilar.graph.rules.norms import batch_norm, group_norm, is_frozen_norm, layer_norm, note_frozen_norm
from slimilar.graph.rules.picking import index
from slimilar.graph.rules.products import contraction, convolution
from slimilar.graph.rules.rearranging import rearrange
from slimilar.graph.rules.run import (
    apply,
    is_depthwise,
    is_pointwise,
    is_uniform,
    is_widthless,
    maker_of_zeros,
)
from slimilar.graph.rules.spatial import reduction
from slimilar.graph.rules.state import zero_parts
from slimilar.graph.rules.table import RULES, Call, Context

# operators behind whose rule stands an assumption that can be given up step by step
LEVELLED = {
    name
    for name, function in RULES.items()
    if function in (view, slice_, split, split_with_sizes, index, cat, rearrange, convolution, group_norm)
}

# operators whose arguments hold sizes or positions, which the code may have taken from anywhere
SIZED = {
    name
    for name, function in RULES.items()
    if function in (view, slice_, split, split_with_sizes, index, rearrange, constant_pad)
} | {"aten.expand"}

# operators that divide, join or move axes
MOVING = {name for name, function in RULES.items() if function in (move, view)}

__all__ = [
    "LEVELLED", "MOVING", "RULES", "SIZED", "Call", "Context", "apply", "batch_norm", "contraction", "convolution",
    "elementwise", "group_norm", "held_integers", "is_depthwise", "is_frozen_norm", "is_pointwise", "is_uniform",
    "is_widthless", "layer_norm", "maker_of_zeros", "note_frozen_norm", "reduction", "view", "viewed",
    "zero_parts",
]  # fmt: skip
