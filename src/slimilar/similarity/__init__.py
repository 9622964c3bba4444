r"""Channel similarity: distances, linkage trees, removal orders, clusters.

Works on tensors and arrays only, not on modules.

>>> import torch
>>> beta = torch.tensor([0.0, 0.1, 3.0, 3.1, 9.0])
>>> gamma = torch.tensor([0.1, 0.2, 0.4, 0.3, 1.0])
>>> tree = linkage_tree(normalise(channel_distance(beta, gamma)))
>>> order = removal_order(tree, gamma)
>>> [cluster.members for cluster in clusters(order, threshold=0.05, n=5)]
[(0, 1), (2, 3), (4,)]
>>> representatives(order, threshold=0.05, n=5)
[1, 2, 4]
"""

from slimilar.similarity.distances import (
    ShiftBound,
    activation_distance,
    channel_distance,
    channel_pairs,
    is_uninformative,
    normalise,
    shift_bound,
)
from slimilar.similarity.linkage import Linkage, linkage_tree, removal_order
from slimilar.similarity.removal_order import (
    NO_REPRESENTATIVE,
    Cluster,
    RemovalOrder,
    clusters,
    representatives,
)

__all__ = [
    "NO_REPRESENTATIVE",
    "Cluster",
    "Linkage",
    "RemovalOrder",
    "ShiftBound",
    "activation_distance",
    "channel_distance",
    "channel_pairs",
    "clusters",
    "is_uninformative",
    "linkage_tree",
    "normalise",
    "removal_order",
    "representatives",
    "shift_bound",
]
