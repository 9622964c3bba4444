"""Run a model once and record its operators; a policy decides on the labels of what they return.

Each ATen operator that runs is looked up in the table of `rules`, whose rule says how the labels of its inputs
(see `labels.py`) become the labels of its outputs.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from slimilar.graph import rules
from slimilar.graph.aliasing import overwrite
from slimilar.graph.assumptions import Assumptions
from slimilar.graph.constants import Constants
from slimilar.graph.escapes import Escapes, check_outputs
from slimilar.graph.labels import NONE, Labels
from slimilar.graph.meta_shapes import shortcut
from slimilar.graph.module_stack import ModuleStack
from slimilar.graph.policy import LabelPolicy
from slimilar.graph.reasons import fixed_size, unknown
from slimilar.graph.records import Integer, Op, Value
from slimilar.graph.values import Values
from slimilar.utils.modules import named_modules, named_tensors
from slimilar.utils.pytree import Example, arguments, map_tensors, separate, tensors_in


def name_of(func: Any) -> str:
    """Return the name of an operator without its overload."""
    return _without_overload(func.name())


@cache
def _without_overload(name: str) -> str:
    return name.split(".")[0].replace("::", ".")


def is_nothing(made: Any) -> bool:
    """Tell whether a tensor that was made of nothing has no elements: every batch norm makes one beside its work.

    That is not recorded. Should another operator take the tensor, it is a constant of the code.
    """
    return isinstance(made, Tensor) and not made.numel()


class Recorder(TorchDispatchMode):
    """Record the operators and values of one forward pass, with the labels that a policy gives them."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; without this, torch wraps every call in a guard against it."""
        return False

    def __init__(self, model: nn.Module, policy: LabelPolicy, assumptions: Assumptions, meta: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model, self.policy, self.meta = model, policy, meta
        self.ops: list[Op] = []
        self.inputs: tuple[int, ...] = ()
        modules = named_modules(model)
        names = {id(t): name for name, t in named_tensors(model, modules).items()}
        self.values, self._constants = Values(names, policy.enter), Constants()
        self._context = rules.Context(self.values, modules, assumptions, self._constants)
        self._stack = ModuleStack(modules)

    def forward(self, example: Example) -> tuple[int, ...]:
        """Call the model on its example input; return the numbers of the values that come out."""
        args, kwargs = arguments(example)
        if self.meta:
            args, kwargs = map_tensors(lambda t: torch.empty_like(t, device="meta"), (args, kwargs))
        self.inputs = tuple(
            self.values.store(tensor, Value(tuple(tensor.shape), NONE, None, True, False))
            for tensor in tensors_in((args, kwargs))
        )
        escapes = Escapes()  # without numbers none can leave
        with (
            nullcontext() if self.meta else escapes,
            self._stack.following(self._leave, by_hooks=not self.meta),
            torch.no_grad(),
            self,
        ):
            result = self.model(*args, **kwargs)
        for tensor, method in escapes.found:
            self.policy.freeze(self.values.labels(tensor), unknown(method))
        check_outputs(result)
        return tuple(self.values.index(t) for t in tensors_in(result))

    def constants(self) -> dict[int, Tensor]:
        """Return the constants of the code by the numbers of their values."""
        return {n: self._constants.original(t).detach() for n, t in self.values.constants.items()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, name_of(func)
        if name == "aten.empty" and is_nothing(result := func(*args, **kwargs)):
            return result
        ins, given = separate((*args, *kwargs.values()) if kwargs else args)
        if self.meta and False in [t.is_meta for t in ins]:
            args, kwargs = map_tensors(self._on_meta, (args, kwargs))
            ins = [self._on_meta(t) for t in ins]
        module, place, turn = self._stack.here(name)
        if name == "aten.index_select" and module in self._context.assumptions.selections:
            return self._select(func, args)
        inputs = [self.values.index(t) for t in ins]
        seen = [self.values.known[i] for i in inputs]
        quick = shortcut(name, args, kwargs) if self.meta else None
        result = quick(*args) if quick else func(*args, **kwargs)
        call = rules.Call(
            func, name, args, kwargs, result, module, (name, place, turn), len(self.ops), ins, inputs, given, seen,
            self._context,
        )  # fmt: skip
        self._record(call, self.policy.label(call))
        return result

    def _select(self, func: Any, args: tuple[Any, ...]) -> Tensor:
        """Run the selection that surgery put in front of a batch norm; the original has no such operator."""
        out: Tensor = func(*args)
        self.values.store(out, Value(tuple(out.shape), NONE, None, True, False))
        return out

    def _record(self, call: rules.Call, labels: list[Labels]) -> None:
        if call.overwrites and call.seen:
            stuck = overwrite(self.values, call.outs[0], call.seen[0].labels, labels[0])
            self.policy.freeze(stuck, fixed_size(f"operator {call.name} writes into a part of a tensor"))
        kept = [self.policy.settle(found) for found in labels]
        op = Op(
            call.name, call.module, call.signature, call.func, call.given, tuple(call.kwargs), tuple(call.inputs),
            self._store_outputs(call, kept),
        )  # fmt: skip
        self.ops.append(op)
        self.policy.recorded(op, kept)
        if call.holds_sizes:
            for held in rules.held_integers(call):
                self.policy.note(Integer(*held))

    def _store_outputs(self, call: rules.Call, labels: list[Labels]) -> tuple[int, ...]:
        dynamic, uniform = True in [v.dynamic for v in call.seen], rules.is_uniform(call)
        zeros = rules.maker_of_zeros(call) if uniform else None
        if uniform and any(out.numel() for out in call.outs):
            self.values.any_uniform = True
        parts = rules.zero_parts(call) if self.values.any_uniform else ()
        pairs = zip(call.outs, labels, strict=True)
        store = self.values.store
        return tuple(
            [
                store(out, Value(tuple(out.shape), found, None, dynamic, uniform, zeros, parts))
                for out, found in pairs
            ]
        )

    def _on_meta(self, tensor: Tensor) -> Tensor:
        """Move a constant that the code makes on the CPU to where the trace runs."""
        copy = self._constants.on_meta(tensor)
        self.values.rename(tensor, copy)
        return copy

    def _leave(self, path: str, module: nn.Module, result: Any) -> None:
        if rules.is_frozen_norm(module) and isinstance(result, Tensor) and self.ops:
            rules.note_frozen_norm(self.policy, self._context, len(self.ops) - 1, path, result)
