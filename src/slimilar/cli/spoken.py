"""Messages of the library in the words of the command line: `--residual joint` instead of `residual="joint"`."""

from __future__ import annotations

import re

_RENAMED = {"calibration": "calibrate"}
_OPTIONS = (
    "calibration", "criterion", "exclude", "flops", "linkage", "macs", "min_channels", "params", "residual",
    "resume", "round_to", "substitute", "threshold",
)  # fmt: skip
_PHRASES = {  # what has no option of that name
    "needs folder=,": "needs --out,",
    "pass folder= or set": "pass --weights FILE or set",
    "pass path= (a .npz file or a folder) or set": "name a .npz file or a folder, or set",
    ", or pass download=True where there is a network": "",
}
_GIVEN = re.compile(rf"\b({'|'.join(_OPTIONS)})=(?:\"([\w-]+)\"|\[\.\.\.\]|([\w.]+))?")
_NAMED = re.compile(rf"\b({'|'.join(name for name in _OPTIONS if '_' in name)})\b")


def spoken(text: str) -> str:
    """Return a message with options as they are typed.

    >>> spoken('allow more (residual="joint", a smaller min_channels), or exclude it (exclude=[...])')
    'allow more (--residual joint, a smaller --min-channels), or exclude it (--exclude NAME)'
    >>> spoken("pass calibration= with some images")
    'pass --calibrate with some images'
    >>> spoken("the folder holds a run; pass resume=True to go on")
    'the folder holds a run; pass --resume to go on'
    """
    for phrase, typed in _PHRASES.items():
        text = text.replace(phrase, typed)

    def option(match: re.Match[str]) -> str:
        value = "NAME" if "[...]" in match[0] else match[2] or match[3]
        value = None if value == "True" else value
        return _option(match[1]) + (f" {value}" if value else "")

    return _NAMED.sub(lambda match: _option(match[1]), _GIVEN.sub(option, text))


def _option(name: str) -> str:
    return f"--{_RENAMED.get(name, name).replace('_', '-')}"
