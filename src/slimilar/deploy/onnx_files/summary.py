"""What an ONNX file holds, as plain data, without running it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from slimilar.deploy.onnx_files.constants import computed_values
from slimilar.deploy.onnx_files.operators import CONVERTERS


def summary(model: Any) -> dict[str, Any]:
    """Return inputs, outputs, opset, metadata, parameters and operators; None for a size that is open."""
    held = {tensor.name for tensor in model.graph.initializer}
    computed = computed_values(model)
    nodes = [n for n in model.graph.node if any(name in computed for name in n.output)]
    counts = Counter(node.op_type for node in nodes)
    return {
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "opset": max(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")),
        "inputs": {v.name: _shape(v) for v in model.graph.input if v.name not in held},
        "outputs": {v.name: _shape(v) for v in model.graph.output},
        "metadata": {entry.key: entry.value[:80] for entry in model.metadata_props},
        "numbers": sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer),
        "operators": {
            kind: {"count": count, "known": kind in CONVERTERS} for kind, count in sorted(counts.items())
        },
    }


def _shape(value: Any) -> list[int | None]:
    return [d.dim_value if d.dim_value > 0 else None for d in value.type.tensor_type.shape.dim]
