"""verify: what the trace has seen must run again, with the removed channels masked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import slimilar
from slimilar.errors import VerificationError
from slimilar.pipeline import apply

TOKENS = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(1))


class Attention(nn.Module):
    """Attention, and a part behind it that can lose channels."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 2, batch_first=True)
        self.wide, self.head = nn.Linear(12, 24), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.wide(self.attention(x, x, x, need_weights=False)[0]).relu())


class Recurrent(nn.Module):
    """A recurrent layer between two that can lose channels."""

    def __init__(self, kind: type[nn.RNNBase], batch_first: bool = True) -> None:
        super().__init__()
        self.before, self.wide, self.head = nn.Linear(12, 8), nn.Linear(12, 24), nn.Linear(24, 4)
        self.layer = kind(8, 6, batch_first=batch_first, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.wide(self.layer(self.before(x).relu())[0]).relu())


class Batched(nn.Module):
    """Attention in one operator, and a consumer that is a product of stacks of matrices, as those inside of it are."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(12, 24)
        self.weight = nn.Parameter(torch.randn(24, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]
        return torch.bmm(self.wide(x).relu(), self.weight.expand(2, -1, -1))


NETWORKS = {
    "attention": Attention,
    "encoder layer": lambda: nn.TransformerEncoderLayer(12, 2, 24, batch_first=True),
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "rnn": lambda: Recurrent(nn.RNN),
    "products of stacks": Batched,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_what_torch_runs_as_one_operator_is_run_as_traced(name):
    torch.manual_seed(0)
    model = NETWORKS[name]().eval()
    plan = slimilar.analyze(model, TOKENS, criterion="magnitude-l1")
    result = apply(model, TOKENS, plan, plan.at(ratio=0.5), reconstruction="none")
    assert result.cut.params < result.cut.before.params
    assert result.error is not None
    assert result.error < 1e-5
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_what_a_recurrent_layer_reads_can_leave(kind, batch_first):
    """It compares its input with a width of its own before any operator runs on it: that number shrinks along."""
    torch.manual_seed(0)
    model = Recurrent(kind, batch_first).eval()
    plan = slimilar.analyze(model, TOKENS, criterion="magnitude-l1")
    assert {g.name: g.width for g in plan.groups} == {"before": 8, "layer": 6, "wide": 24}
    small = apply(model, TOKENS, plan, plan.at(ratio=0.5, round_to=1), reconstruction="none").model
    assert small.layer.input_size == small.before.out_features == 4
    assert small.layer.hidden_size == 3


def test_threads_leave_the_switch_of_attention_as_it_was():
    """It is one for all threads: who finds it off while another runs must not leave it off."""
    torch.manual_seed(0)
    model = Attention().eval()
    plan = slimilar.analyze(model, TOKENS, criterion="magnitude-l1")
    cut = plan.at(ratio=0.5)
    with ThreadPoolExecutor(8) as pool:
        errors = list(
            pool.map(lambda _: apply(model, TOKENS, plan, cut, reconstruction="none").error, range(64))
        )
    assert max(errors) < 1e-5
    assert torch.backends.mha.get_fastpath_enabled()


class OnlyShapes(nn.Module):
    """Read channels where there are no numbers, as in the trace; elsewhere do not."""

    def __init__(self, consumer: nn.Module) -> None:
        super().__init__()
        self.wide, self.consumer = nn.Linear(12, 24), consumer

    def forward(self, x: Tensor) -> Tensor:
        wide = self.wide(x).relu()
        found = self.consumer(wide) if x.is_meta else wide.mean()
        return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize("consumer", [nn.Linear, partial(nn.LSTM, batch_first=True)])
def test_a_reader_that_did_not_run_is_refused(consumer):
    torch.manual_seed(0)
    model = OnlyShapes(consumer(24, 4)).eval()
    plan = slimilar.analyze(model, TOKENS, criterion="magnitude-l1")
    with pytest.raises(VerificationError, match="did not run on random input; at fault: group wide"):
        apply(model, TOKENS, plan, plan.at(ratio=0.5), reconstruction="none")


class Chaotic(nn.Module):
    """Rounding grows until it decides; the code makes a grid of float32, whatever the model is converted to."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 4, 3, padding=1)

    def forward(self, x):
        line = torch.arange(x.shape[-1]).float() / x.shape[-1]
        grid = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).expand(len(x), -1, -1, -1)
        y = nn.functional.grid_sample(self.b(self.a(x)), grid, align_corners=False).sigmoid()
        for _ in range(22):
            y = 3.9 * y * (1 - y)
        return y


@pytest.mark.parametrize("images", [None, torch.randn(32, 3, 8, 8)])
def test_rounding_is_decided_in_float64_also_where_the_code_asks_for_float32(images):
    torch.manual_seed(0)
    net, x = Chaotic().eval(), torch.randn(2, 3, 8, 8)
    result = slimilar.prune(net, x, ratio=0.5, criterion="magnitude-l2", calibration=images)
    assert result.error < 1e-6
    halved = (result.model(x) - slimilar.remove_channels(net, x, {"a": []})(x)).abs().max()
    assert halved > 1e-4  # it is another network
