"""Replaying a program gives what the model gives, whatever its code does to memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from helpers.fitting import generator
from slimilar import models
from slimilar.calibration import replay
from slimilar.calibration.program import record
from slimilar.utils.modules import named_tensors


@pytest.mark.parametrize("name", ["vgg16", "resnet20", "preresnet"])
def test_replaying_is_running_the_model(name: str) -> None:
    net = (models.PreResNet(11) if name == "preresnet" else models.build(name, width=0.25)).eval()
    x = torch.randn(4, 3, 32, 32, generator=generator())
    program = record(net, x)
    values = replay.start(program, [x])
    with torch.no_grad():
        replay.run(program, values, named_tensors(net))
        torch.testing.assert_close(values[program.outputs[0]], net(x), rtol=1e-4, atol=1e-5)


def test_what_was_looked_at_ahead_is_not_kept_alive() -> None:
    """Without waiting for the garbage collector, which comes round too seldom for tensors of many megabytes."""
    net, x = models.build("resnet20", width=0.25).eval(), torch.randn(2, 3, 32, 32, generator=generator())
    program = record(net, x)
    gc.disable()
    try:
        with torch.no_grad():
            found = weakref.ref(
                replay.peek(program, program.outputs[0], replay.start(program, [x]), named_tensors(net))
            )
            assert found() is None
    finally:
        gc.enable()


class Around(nn.Module):
    """A convolution, any code behind it, and another convolution."""

    def __init__(self, code: Callable[[Tensor], Tensor], width: int = 8) -> None:
        super().__init__()
        self.a, self.b, self.code = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(width, 4, 1), code
        self.register_buffer("scale", torch.rand(8, 1, 1, generator=generator(1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.code(self.a(x)))


def shuffled(x: Tensor) -> Tensor:
    return x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2).relu()


def test_flattening_a_transposed_tensor_is_replayed_at_every_batch_size() -> None:
    """torch copies there and calls `_unsafe_view`, with the sizes of the example written in."""
    net = Around(shuffled).eval()
    program = record(net, torch.randn(2, 3, 6, 6, generator=generator()))
    assert any("_unsafe_view" in instruction.func.name() for instruction in program.instructions)
    for size in (1, 2, 5):
        x, sized = torch.randn(size, 3, 6, 6, generator=generator(size)), program.at(size)
        values = replay.start(sized, [x])
        with torch.no_grad():
            replay.run(sized, values, named_tensors(net))
            torch.testing.assert_close(values[sized.outputs[0]], net(x))


def through_a_view(x: Tensor) -> Tensor:
    x[:, :3] += 1
    return x


def under_a_view(x: Tensor) -> Tensor:
    part = x[:, 2:6]
    x.mul_(2)
    return torch.cat([x[:, :4], part], 1)


def shifted(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[:, :4] = x[:, 4:]
    out[:, 4:, 1:] = x[:, 4:, :-1]
    return out


def halves_alone(x: Tensor) -> Tensor:
    a, b = (x + 1).chunk(2, 1)
    a.relu_()
    b.sigmoid_()
    return torch.cat([b, a], 1)


def two_parts(x: Tensor) -> Tensor:
    a, b = x.chunk(2, 1)
    a.relu_()
    b.sigmoid_()
    return x


CODE: dict[str, Callable[[Tensor], Tensor]] = {
    "shuffle with flatten": shuffled,
    "shuffle with reshape": lambda x: x.view(len(x), 4, 2, *x.shape[2:]).transpose(1, 2).reshape(x.shape),
    "flatten and back": lambda x: x.permute(0, 2, 3, 1).flatten(1).view(len(x), 12, 12, 8).permute(0, 3, 1, 2),
    "pooling over channels": lambda x: nn.functional.max_pool3d(x, (2, 1, 1), stride=1, padding=(1, 0, 0))[:, :8],
    "write through a view": through_a_view,
    "write under a view": under_a_view,
    "write parts of a fresh tensor": shifted,
    "write both halves": two_parts,
    "write both halves of nothing": halves_alone,
    "constants of the code": lambda x: x * torch.arange(8.0)[:, None, None] + torch.ones(1, 8, 1, 1),
    "complex numbers": lambda x: torch.view_as_real(torch.fft.fft2(x)).sum(-1),
}  # fmt: skip


@pytest.mark.parametrize("name", CODE)
def test_replaying_follows_what_code_does_to_memory(name: str) -> None:
    torch.manual_seed(0)
    net, x = Around(CODE[name]).eval(), torch.randn(2, 3, 12, 12, generator=generator())
    program = record(net, x)
    values = replay.start(program, [x])
    with torch.no_grad():
        replay.run(program, values, named_tensors(net))
        torch.testing.assert_close(values[program.outputs[0]], net(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["write through a view", "write parts of a fresh tensor"])
def test_gradients_pass_through_what_is_written_in_parts(name: str) -> None:
    torch.manual_seed(0)
    net, x = Around(CODE[name]).eval(), torch.randn(2, 3, 12, 12, generator=generator())
    program = record(net, x)
    values, k = replay.start(program, [x]), 0
    held = {n: t.detach() for n, t in named_tensors(net).items()}
    while "convolution" not in program.instructions[k].func.name():
        k += 1
    replay.run(program, values, held, 0, k + 1)
    seen = values[program.instructions[k].outputs[0]].requires_grad_()
    replay.run(program, values, held, k + 1)
    found = torch.autograd.grad(values[program.outputs[0]].square().sum(), seen)[0]
    inner = seen.detach().clone().requires_grad_()
    wanted = torch.autograd.grad(net.b(net.code(inner.clone())).square().sum(), inner)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_values_of_an_earlier_state_survive_a_write() -> None:
    net, x = Around(through_a_view).eval(), torch.randn(2, 3, 12, 12, generator=generator())
    program, tensors = record(net, x), named_tensors(net)
    with torch.no_grad():
        values = replay.start(program, [x])
        replay.run(program, values, tensors, 0, 1)
        before = {number: t.clone() for number, t in values.items()}
        ahead = replay.peek(program, program.outputs[0], values, tensors)
        assert all(torch.equal(values[number], t) for number, t in before.items())
        torch.testing.assert_close(ahead, net(x), rtol=1e-4, atol=1e-5)


def test_a_program_in_double_precision_computes_in_it() -> None:
    net = Around(lambda x: x.half().float() * 0 + x * torch.ones(8, 1, 1)).eval()
    x = torch.randn(2, 3, 12, 12, generator=generator())
    program = record(net, x).moved(x.device, torch.float64)
    tensors = {n: t.double() for n, t in named_tensors(net).items()}
    values = replay.start(program, [x])
    with torch.no_grad():
        replay.run(program, values, tensors)
        wanted = net.double().b(net.a(x.double()))
    assert values[program.outputs[0]].dtype == torch.float64
    torch.testing.assert_close(values[program.outputs[0]], wanted, rtol=1e-10, atol=1e-12)
