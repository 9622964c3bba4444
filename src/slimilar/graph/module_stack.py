"""Know which module is running, and for the how-manieth time it calls an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

OnLeave = Callable[[str, nn.Module, Any], None]  # path, module, what its forward returned


class Watch:
    """The path of the module that is running, kept while a model runs."""

    def __init__(self, modules: Mapping[str, nn.Module], by_hooks: bool) -> None:
        self.modules, self.by_hooks = modules, by_hooks
        self._stack: list[str] = [""]
        self._turns: list[dict[str, int]] = [{}]
        self._places: dict[str, str] = {}

    @property
    def module(self) -> str:
        """Return the path of the module that runs."""
        return self._stack[-1]

    def here(self, operator: str) -> tuple[str, str, int]:
        """Return the module that runs, its place in the code, and how often it has called an operator before."""
        turns, module = self._turns[-1], self._stack[-1]
        turns[operator] = turn = turns.get(operator, -1) + 1
        place = self._places.get(module)
        if place is None:
            self._places[module] = place = _place(module, self.modules)
        return module, place, turn

    @contextmanager
    def running(self, on_leave: OnLeave) -> Iterator[None]:
        """Watch all modules, and tell when one has run.

        Modules with hooks, whose operators are theirs too, are watched by hooks; others by their forward, because
        torch takes much longer to call a module that has any hook. Hooks on all keep torch from running a
        transformer's layer as one operator.
        """
        hooks: list[Any] = []
        forwards: list[dict[str, Any]] = []
        for path, module in self.modules.items():
            own = module._forward_pre_hooks or module._forward_hooks or "forward" in vars(module)
            if path and (own or self.by_hooks):
                hooks.append(module.register_forward_pre_hook(partial(self._enter, path), prepend=True))
                hooks.append(module.register_forward_hook(partial(self._leave, on_leave), always_call=True))
            elif path:
                vars(module)["forward"] = self._watching(path, module, on_leave)
                forwards.append(vars(module))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for held in forwards:
                held.pop("forward", None)

    def _watching(self, path: str, module: nn.Module, on_leave: OnLeave) -> Callable[..., Any]:
        """Return the forward of a module, with a note that it runs."""
        forward = module.forward

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._enter(path)
            result = None
            try:
                result = forward(*args, **kwargs)
            finally:
                self._leave(on_leave, module, args, result)
            return result

        watched.__wrapped__ = forward  # type: ignore[attr-defined]  # for code that asks what forward takes
        return watched

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
