"""Every engine computes what the model computes, before and after pruning."""

from __future__ import annotations

import importlib.util

import pytest
import torch

import slimilar
from helpers.small_networks import Mobile, images, trained
from slimilar.deploy.onnx_session import session_options
from slimilar.deploy.runtimes import ENGINES, available, check_engine
from slimilar.errors import InvalidInput

needs_openvino = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="OpenVINO is not installed: make test-engines"
)


@pytest.mark.parametrize(
    "engine",
    [
        "pytorch",
        pytest.param("compile", marks=pytest.mark.slow),
        pytest.param("onnxruntime", marks=pytest.mark.engines),
        pytest.param("openvino", marks=[pytest.mark.engines, needs_openvino]),
    ],
)
@pytest.mark.parametrize("pruned", [False, True])
def test_engines_compute_what_the_model_computes(engine, pruned):
    model = trained(Mobile())
    if pruned:
        model = slimilar.prune(model, images(1), flops=0.6).model.eval()
    found = ENGINES[engine](model, images(1))()
    answer = torch.as_tensor(found if isinstance(found, torch.Tensor) else found[0])
    with torch.no_grad():
        torch.testing.assert_close(answer, model(images(1)), atol=1e-5, rtol=1e-4)


def test_engines_are_named():
    assert {"pytorch", "compile", "onnxruntime"} <= set(available())
    with pytest.raises(InvalidInput, match="engine must be one of pytorch"):
        check_engine("caffe")


def test_threads_of_a_session_rest_between_its_runs():
    """Otherwise those of one session take processor time from the next that is timed."""
    options = session_options()
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"
    assert options.intra_op_num_threads == torch.get_num_threads()
