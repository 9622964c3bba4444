"""Follow which module is running, and how often it has called each operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

OnLeave = Callable[[str, nn.Module, Any], None]  # path, module, what its forward returned


class ModuleStack:
    """The modules that are running, the innermost last."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self.modules = modules
        self._stack: list[str] = [""]
        self._turns: list[dict[str, int]] = [{}]
        self._places: dict[str, str] = {}

    def here(self, operator: str) -> tuple[str, str, int]:
        """Return the module that runs, its place in the code, and how often it has called an operator before.

        A linear layer views its input by one operator or another, as the batch size has it: they are counted as one.
        """
        turns, module = self._turns[-1], self._stack[-1]
        operator = "aten.view" if operator == "aten._unsafe_view" else operator
        turns[operator] = turn = turns.get(operator, -1) + 1
        place = self._places.get(module)
        if place is None:
            self._places[module] = place = _place(module, self.modules)
        return module, place, turn

    @contextmanager
    def following(self, on_leave: OnLeave, by_hooks: bool = True) -> Iterator[None]:
        """Follow all modules, and call `on_leave` when one has run.

        Hooks keep torch from running a transformer's layer as one operator. Without numbers it does not do so, and
        `by_hooks` is not needed: wrapped forwards save a tenth of an analysis. Modules whose own hooks run operators
        are always followed by hooks, which see these too.
        """
        hooks: list[RemovableHandle] = []
        wrapped: list[dict[str, Any]] = []
        try:
            for path, module in self.modules.items():
                if not path:
                    continue
                own = vars(module)
                if by_hooks or module._forward_pre_hooks or module._forward_hooks or "forward" in own:
                    hooks += self._hook(path, module, on_leave)
                else:
                    own["forward"] = self._followed(path, module, on_leave)
                    wrapped.append(own)
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for own in wrapped:
                own.pop("forward", None)

    def _hook(self, path: str, module: nn.Module, on_leave: OnLeave) -> Iterator[RemovableHandle]:
        yield module.register_forward_pre_hook(partial(self._enter, path), prepend=True)
        yield module.register_forward_hook(partial(self._leave, on_leave), always_call=True)

    def _followed(self, path: str, module: nn.Module, on_leave: OnLeave) -> Callable[..., Any]:
        """Return the forward of a module that enters and leaves the stack; code that asks sees its signature."""
        forward = module.forward

        def followed(*args: Any, **kwargs: Any) -> Any:
            self._enter(path)
            result = None
            try:
                result = forward(*args, **kwargs)
            finally:
                self._leave(on_leave, module, args, result)
            return result

        followed.__wrapped__ = forward  # type: ignore[attr-defined]  # all that code asks for; wraps() copies more
        return followed

    def _enter(self, path: str, *_: Any) -> None:
        self._stack.append(path)
        self._turns.append({})

    def _leave(self, on_leave: OnLeave, module: nn.Module, args: Any, result: Any) -> None:
        path = self._stack.pop()
        self._turns.pop()
        on_leave(path, module, result)


def _place(path: str, modules: Mapping[str, nn.Module]) -> str:
    """Return where in the code a module runs: the classes around it and its name, the same for repeated blocks.

    A class of the user's runs the same code under whatever number it stands in a list; one of torch's runs for
    the list that it stands in.
    """
    around = [path]
    while around[-1] and len(around) < 3:
        around.append(around[-1].rpartition(".")[0])
    place = ".".join([type(modules[p]).__name__ for p in reversed(around)])
    own = path.rpartition(".")[2]
    if not own or (own.isdigit() and not type(modules[path]).__module__.startswith("torch.nn")):
        return place
    return f"{place}.{own}"
