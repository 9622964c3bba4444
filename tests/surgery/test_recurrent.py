"""Hidden units of recurrent layers: all gates, directions and layers lose the same ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import slimilar
from helpers.exact import check_exact
from slimilar.surgery.probe import find_structure

X = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))


class Tagger(nn.Module):
    """A linear layer, a recurrent one, and a consumer of its outputs."""

    def __init__(self, kind: Callable[..., nn.Module], **options: Any) -> None:
        super().__init__()
        both = 2 if options.get("bidirectional") else 1
        self.first = nn.Linear(6, 10)
        self.hidden = kind(
            10, 10, batch_first=True, **options
        )  # as wide as its input: the two must not be confused
        self.head = nn.Linear(10 * both, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(self.first(x).relu())[0])


class LastState(nn.Module):
    """The state at the end, and one of the code's own to start from."""

    def __init__(self, start: bool) -> None:
        super().__init__()
        self.width, self.start = 10, start
        self.hidden, self.head = nn.GRU(6, 10, num_layers=2), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        zeros = torch.zeros(2, x.shape[1], self.width, dtype=x.dtype, device=x.device)
        return self.head(self.hidden(x, zeros if self.start else None)[1][-1])


class Steps(nn.Module):
    """A cell that the code itself calls step by step."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.cell, self.head = kind(6, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return self.head(state[0] if isinstance(state, tuple) else state)


class Literal(nn.Module):
    """Code that works at one width only."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.GRU(6, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(x, x.new_zeros(1, x.shape[1], 10))[0])


NETWORKS: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "LSTM": (lambda: Tagger(nn.LSTM), {"first", "hidden"}),
    "two layers, both directions": (
        lambda: Tagger(nn.LSTM, num_layers=2, bidirectional=True), {"first", "hidden"},
    ),
    "GRU": (lambda: Tagger(nn.GRU, bidirectional=True), {"first", "hidden"}),
    "RNN": (lambda: Tagger(nn.RNN, nonlinearity="relu"), {"first", "hidden"}),
    "last state": (lambda: LastState(start=False), {"hidden"}),
    "zeros of the code": (lambda: LastState(start=True), {"hidden"}),
    "LSTMCell": (lambda: Steps(nn.LSTMCell), {"cell"}),
    "GRUCell": (lambda: Steps(nn.GRUCell), {"cell"}),
    "RNNCell": (lambda: Steps(nn.RNNCell), {"cell"}),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_hidden_units_leave_exactly(name: str) -> None:
    torch.manual_seed(0)
    make, names = NETWORKS[name]
    assert check_exact(make().double().eval(), X.double(), names) < 1e-9


def test_what_is_left_is_the_layer_that_does_not_read_the_others() -> None:
    """By hand: units that no weight reads do not matter, whatever their gates compute."""
    torch.manual_seed(0)
    net = Tagger(nn.LSTM, num_layers=2, bidirectional=True).eval()
    gone = [0, 3, 4, 9]
    small = slimilar.remove_channels(net, X, {"hidden": gone})
    assert (small.hidden.hidden_size, small.hidden.input_size) == (6, 10)
    deaf, both = Tagger(nn.LSTM, num_layers=2, bidirectional=True).eval(), [*gone, *(10 + u for u in gone)]
    deaf.load_state_dict(net.state_dict())
    with torch.no_grad():
        for name, weight in deaf.hidden.named_parameters():
            if "weight_hh" in name:
                weight[:, gone] = 0
            elif "weight_ih_l1" in name:
                weight[:, both] = 0
        deaf.head.weight[:, both] = 0
    torch.testing.assert_close(small(X), deaf(X))


@pytest.mark.parametrize("calibration", [None, torch.randn(32, 5, 6)])
def test_pruned_with_and_without_data_and_loaded_again(calibration: Tensor | None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Tagger(nn.LSTM, bidirectional=True).eval()
    result = slimilar.prune(net, X, ratio=0.3, round_to=1, criterion="magnitude-l2", calibration=calibration)
    assert result.cut.widths == {"first": 7, "hidden": 7}
    assert result.error is not None
    assert result.error < 1e-4
    file = slimilar.save(result, tmp_path / "small.safetensors")
    torch.testing.assert_close(
        slimilar.load(file, Tagger(nn.LSTM, bidirectional=True)).eval()(X), result.model.eval()(X)
    )


def test_a_literal_width_keeps_all_units() -> None:
    grouping = find_structure(Literal(), X).grouping
    assert not grouping.groups
    assert {"hidden", "head"} == {f.name for f in grouping.frozen}


class Projected(nn.Module):
    """An LSTM whose state is projected onto fewer channels."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        both = 2 if options.get("bidirectional") else 1
        self.hidden, self.head = nn.LSTM(6, 12, proj_size=5, **options), nn.Linear(5 * both, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.hidden(x)[0])


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=str)
def test_a_projected_state_and_what_is_projected_leave_exactly(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    net, names = Projected(**options).double().eval(), {"hidden.weight_hh_l0", "hidden.weight_hr_l0"}
    assert check_exact(net, X.double(), names) < 1e-9
    least = slimilar.prune(net, X.double(), ratio=0.95, criterion="magnitude-l2", reconstruction="none").model
    assert least.hidden.hidden_size > least.hidden.proj_size  # else torch would not project


class ConvLSTMCell(nn.Module):
    """Convolutions instead of products; the state is put beside the input, and starts as zeros of a method."""

    def __init__(self, read: int, width: int) -> None:
        super().__init__()
        self.width, self.gates = width, nn.Conv2d(read + width, 4 * width, 3, padding=1)

    def start(self, x: Tensor) -> tuple[Tensor, Tensor]:
        zeros = torch.zeros(len(x), self.width, *x.shape[3:], dtype=x.dtype)
        return zeros, zeros

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        i, f, o, g = self.gates(torch.cat([x, state[0]], 1)).split(self.width, 1)
        cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell


class ConvLSTM(nn.Module):
    """Two cells; the second reads what the first writes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 5, 1), nn.Conv2d(6, 2, 1)
        self.first, self.second = ConvLSTMCell(5, 8), ConvLSTMCell(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.first.start(x), self.second.start(x)
        for t in range(x.shape[1]):
            one = self.first(self.stem(x[:, t]).relu(), one)
            two = self.second(one[0], two)
        return self.head(two[0])


class ConvGRU(nn.Module):
    """Two layers read the state; the code makes the zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.width, self.head = 8, nn.Conv2d(8, 2, 1)
        self.gates, self.new = nn.Conv2d(11, 16, 3, padding=1), nn.Conv2d(11, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), self.width, *x.shape[3:])
        for t in range(x.shape[1]):
            reset, update = self.gates(torch.cat([x[:, t], state], 1)).sigmoid().chunk(2, 1)
            new = self.new(torch.cat([x[:, t], reset * state], 1)).tanh()
            state = torch.lerp(state, new, update)
        return self.head(state)


FRAMES = torch.randn(2, 3, 3, 4, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("make", "names"), [(ConvLSTM, {"stem", "first.gates", "second.gates"}), (ConvGRU, {"gates"})]
)
def test_states_beside_the_input_leave_exactly(make: Callable[[], nn.Module], names: set[str]) -> None:
    torch.manual_seed(0)
    assert check_exact(make().double().eval(), FRAMES.double(), names) < 1e-9


def test_a_convolutional_state_by_hand_and_with_images() -> None:
    """Units that neither the gates nor the next cell reads do not matter, whatever their gates compute."""
    torch.manual_seed(0)
    net, deaf, gone = ConvLSTM().eval(), ConvLSTM().eval(), [0, 3, 7]
    small = slimilar.remove_channels(net, FRAMES, {"first.gates": gone})
    assert (small.first.width, small.second.width, small.first.gates.out_channels) == (5, 6, 20)
    deaf.load_state_dict(net.state_dict())
    with torch.no_grad():
        deaf.first.gates.weight[:, [5 + u for u in gone]] = 0
        deaf.second.gates.weight[:, gone] = 0
    torch.testing.assert_close(small(FRAMES), deaf(FRAMES))
    images = torch.randn(32, 3, 3, 4, 4)
    result = slimilar.prune(net, FRAMES, ratio=0.4, criterion="magnitude-l2", calibration=images)
    assert result.error is not None
    assert result.error < 1e-4


class Bare(nn.Module):
    """Weights without layers of their own, of different widths."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.randn(s)) for s in ((9, 6), (12, 9), (3, 12)))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.a.T).relu() @ self.b.T @ self.c.T


def test_groups_of_one_module_have_names_of_their_own() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Bare()).eval()
    result = slimilar.prune(net, X, ratio=0.5, criterion="magnitude-l2", reconstruction="none", round_to=1)
    assert result.cut.widths == {"0.a": 5, "0.b": 6}
    strong = net[0].b.detach().norm(dim=1).topk(6).indices.sort().values
    assert result.cut.kept["0.b"] == tuple(strong.tolist())
