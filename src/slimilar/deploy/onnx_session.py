"""How ONNX Runtime runs here: on as many threads as PyTorch, and quiet while another model has its turn."""

from __future__ import annotations

from typing import Any

import torch

from slimilar.deploy.extras import require


def session_options() -> Any:
    """Return the options of a session.

    Its threads stop spinning when a run ends. Otherwise those of every session that ran before still take processor
    time from the next, and models that are timed in turn on several threads look slower than they are.
    """
    options = require("onnxruntime").SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options
