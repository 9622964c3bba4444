"""Criteria: in which order channels leave."""

from slimilar.criteria.base import Criterion, Weights
from slimilar.criteria.similarity import Similarity

__all__ = ["Criterion", "Similarity", "Weights"]
