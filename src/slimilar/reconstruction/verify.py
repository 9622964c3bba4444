"""Verify what the caller gets: the rebuilt model must compute what the reconstructed network computes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from slimilar.calibration import replay
from slimilar.calibration.program import Program, resized_example
from slimilar.errors import VerificationError
from slimilar.graph.groups import Grouping
from slimilar.reconstruction.least_squares import Network
from slimilar.surgery.other_inputs import random_like, with_small_images
from slimilar.surgery.rewrite import Kept, atoms_kept
from slimilar.surgery.verify import difference, plain_outputs
from slimilar.utils.modules import copy_with, named_tensors
from slimilar.utils.precision import MinimumPrecision, exact_device
from slimilar.utils.pytree import Example, arguments, tensors_in

Masks = Mapping[int, list[tuple[int, int, Tensor]]]  # operator -> value, axis, positions


def verify_reconstruction(
    program: Program, grouping: Grouping, network: Network, small: nn.Module, example: Example
) -> float:
    """Return the largest relative difference between the rebuilt model and the program with the network's weights.

    The program runs at the original's widths, on one batch of random input; wherever an operator reads removed
    channels, these are set to zero. Images are made small first: what is compared are channels, and where the program
    does not fit such images the example's size decides. A difference in float32 is decided in float64.
    """
    if any(t.is_meta for t in network.pruned.values()):
        return 0.0
    for smaller in with_small_images(example):
        error = _error_or_none(program, grouping, network, small, smaller)
        if error is not None and error < 1e-4:
            return error
    error = _error(program, grouping, network, small, example)
    if not error < 1e-4:
        sure = program.moved(exact_device(program.device), torch.float64)
        try:
            with MinimumPrecision(torch.float64):
                error = _error(sure, grouping, network, small, example)
        except Exception as raised:  # code that calls a library by a type of its own
            raise VerificationError(
                f"in float32 the smaller model differs by {error:.2g} of the largest value from the network with "
                "reconstructed weights; whether that is rounding float64 would tell, but there the model raised: "
                f"{raised}"
            ) from raised
        if not error < 1e-6:
            raise VerificationError(
                "the smaller model must compute what the network with reconstructed weights computes, but their "
                f"outputs differ by {error:.2g} of the largest value"
            )
    return error


def _error_or_none(
    program: Program, grouping: Grouping, network: Network, small: nn.Module, example: Example
) -> float | None:
    """Return the error on images of another size than the program was recorded at, None if they do not fit it."""
    try:
        return _error(program, grouping, network, small, example)
    except Exception:  # sizes that stand in the program, or that the user's code does not take
        return None


def _error(
    program: Program, grouping: Grouping, network: Network, small: nn.Module, example: Example
) -> float:
    device, dtype = program.device, program.dtype
    inputs = random_like(resized_example(example, program.batch_size), dtype, device)
    tensors, constants = _as_stored(network, small, device, dtype)
    masks = removed_input_positions(program, grouping, network.kept)
    expected = masked_outputs(program, masks, tensors, constants, list(tensors_in(arguments(inputs))))
    here = all((t.device, t.dtype) == (device, dtype) for t in small.parameters() if t.is_floating_point())
    return difference(
        expected, plain_outputs(small if here else copy_with(small, {}).to(device, dtype), inputs)
    )


def _as_stored(
    network: Network, small: nn.Module, device: torch.device, dtype: torch.dtype
) -> tuple[dict[str, Tensor], dict[int, Tensor]]:
    """Return the network's weights and constants, rounded as the smaller model holds them."""
    held = {name: t.dtype for name, t in named_tensors(small).items()}
    narrow = next((t.dtype for t in small.parameters() if t.is_floating_point()), dtype)

    def rounded(t: Tensor, stored: torch.dtype) -> Tensor:
        return t.to(stored).to(device).to(dtype) if t.is_floating_point() else t.to(device)

    tensors = {name: rounded(t, held.get(name, t.dtype)) for name, t in network.pruned.items()}
    return tensors, {op: rounded(t, narrow) for op, t in network.biases.items()}


def removed_input_positions(program: Program, grouping: Grouping, kept: Kept) -> Masks:
    """Return the positions of removed channels at every operator that reads any."""
    stays = np.append(atoms_kept(grouping, kept), True)  # CONSTANT = -1 finds the last entry
    found: dict[int, list[tuple[int, int, Tensor]]] = {}
    for read in program.trace.summing:
        lost = np.flatnonzero(~stays[read.atoms])
        if len(lost):
            found.setdefault(read.op, []).append((read.value, read.axis, torch.from_numpy(lost)))
    return found


def masked_outputs(
    program: Program,
    masks: Masks,
    tensors: replay.Tensors,
    constants: Mapping[int, Tensor],
    inputs: list[Tensor],
) -> list[Tensor]:
    """Run a program with some channels set to zero wherever an operator reads them; return its outputs."""
    values, position = replay.start(program, inputs), 0
    with torch.no_grad():
        for k in [*sorted(masks), len(program.instructions)]:
            replay.run(program, values, tensors, position, k, constants)
            if k in masks:
                _run_masked(program, k, masks[k], values, tensors, constants)
            position = k + 1
    return [values[v] for v in program.outputs]


def _run_masked(
    program: Program, k: int, masks: list[tuple[int, int, Tensor]], values: replay.Values, tensors: replay.Tensors,
    constants: Mapping[int, Tensor],
) -> None:  # fmt: skip
    """Run one operator on masked inputs; other operators go on with the values as they are."""
    before = {value: values[value] for value, _, _ in masks}
    for value, axis, lost in masks:
        values[value] = values[value].index_fill(axis, lost.to(values[value].device), 0)
    last = {value: program.last_use[value] for value in before}
    replay.run(program, values, tensors, k, k + 1, constants)
    values.update({value: old for value, old in before.items() if last[value] > k})
