"""Assemble one HTML file from the data and the parts in `page/`; layer names cannot inject markup or code."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from functools import cache
from importlib import resources
from typing import Any

# In order of dependence: a file may use the files before it.
_SCRIPTS = (
    "base", "network", "clusters", "command", "plot", "flow", "curve", "tree", "heat", "scatter", "layer", "table",
    "poster", "app",
)  # fmt: skip


def render(data: dict[str, Any]) -> str:
    """Return the HTML page for the given data.

    >>> "<script>alert" in render({"title": "<script>alert(1)</script>"})
    False
    """
    script, style = _script(), _part("style.css")
    # Only the two blocks with these digests may run; nothing is loaded or sent.
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": html.escape(policy, quote=False),
        "title": html.escape(str(data.get("title", ""))),
        "style": style,
        "data": embed(data),
        "script": script,
    }
    # Split once, so that inserted text is never taken for a placeholder.
    pieces = re.split(r"\{\{(\w+)\}\}", _part("page.html"))
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def embed(data: Any) -> str:
    """Return data as JSON that cannot close its HTML element.

    >>> embed({"name": "</script><!--"})
    '{"name":"\\\\u003c/script\\\\u003e\\\\u003c!--"}'
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def _part(name: str) -> str:
    return (resources.files("slimilar.report") / "page" / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    body = "\n".join(_part(f"{name}.js") for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{body}\n}})();\n'


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
