"""Which operators of a forward pass matter to what it returns."""

from __future__ import annotations

from collections.abc import Sequence

from slimilar.graph.records import Op


def unused_operators(ops: Sequence[Op], outputs: Sequence[int]) -> set[int]:
    """Return the numbers of operators that nothing the model returns depends on, such as weights of attention.

    What writes into memory counts as used: who else reads that memory is not looked for.
    """
    needed, unused = set(outputs), set()
    for number in range(len(ops) - 1, -1, -1):
        op = ops[number]
        if op.name.endswith("_") or "out" in op.keywords or not needed.isdisjoint(op.outputs):
            needed.update(op.inputs)
        else:
            unused.add(number)
    return unused
