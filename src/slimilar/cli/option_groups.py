"""Options that belong together, as one dataclass that several commands take as a single parameter.

A field is an option, declared as Typer declares the parameter of a command:

    @dataclass(frozen=True)
    class Speed:
        fast: Annotated[bool, typer.Option("--fast", help="Be quick.")] = False
        skip: Annotated[tuple[str, ...], typer.Option(help="Leave this out. Repeatable.")] = ()

    def work(model: str, speed: Speed = Speed(fast=True)) -> None: ...

`ungrouped(work)` is what Typer is given: a function of `model`, `fast` and `skip`. The defaults are those of the
parameter's default, here `fast=True`, or of the class where it has none. A field may be such a dataclass itself.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from inspect import Parameter
from typing import Annotated, Any, get_args, get_origin, get_type_hints

_REPEATABLE = tuple[str, ...]


def ungrouped(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command that takes every option of its groups as a parameter of its own."""
    hints = get_type_hints(command, include_extras=True)
    own = [p.replace(annotation=hints[p.name]) for p in inspect.signature(command).parameters.values()]
    options = [option for parameter in own for option in _options(parameter)]

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        return command(**{parameter.name: _gathered(parameter, given) for parameter in own})

    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def _options(parameter: Parameter) -> Iterator[Parameter]:
    """Yield the options that a parameter stands for: itself, or the fields of its group."""
    if _is_group(parameter.annotation):
        for field in _fields(parameter):
            yield from _options(field)
    elif _is_repeatable(parameter.annotation):
        _, *info = get_args(parameter.annotation)
        repeated: Any = (list[str] | None, *info)
        yield parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=Annotated[repeated], default=None)
    else:
        yield parameter.replace(kind=Parameter.KEYWORD_ONLY)


def _fields(group: Parameter) -> list[Parameter]:
    """Return the fields of a group as parameters, with the defaults that the group's own default gives them."""
    made = group.annotation() if group.default is Parameter.empty else group.default
    hints = get_type_hints(group.annotation, include_extras=True)
    return [
        Parameter(f.name, Parameter.KEYWORD_ONLY, annotation=hints[f.name], default=getattr(made, f.name))
        for f in dataclasses.fields(group.annotation)
    ]


def _gathered(parameter: Parameter, given: dict[str, Any]) -> Any:
    """Return the value of a parameter of the command, out of the options that were given."""
    if _is_group(parameter.annotation):
        return parameter.annotation(**{f.name: _gathered(f, given) for f in _fields(parameter)})
    value = given[parameter.name]
    return tuple(value or ()) if _is_repeatable(parameter.annotation) else value


def _is_repeatable(annotation: Any) -> bool:
    return get_origin(annotation) is Annotated and get_args(annotation)[0] == _REPEATABLE


def _is_group(annotation: Any) -> bool:
    return dataclasses.is_dataclass(annotation)
