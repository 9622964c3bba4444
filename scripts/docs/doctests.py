"""An extension of Griffe: doctests in docstrings are shown as code."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Puts a fence around every block that begins with `>>>` and ends with an empty line."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(
                r"(?ms)^(>>> .*?)(?=\n\s*\n|\Z)", r"```pycon\n\1\n```", obj.docstring.value
            )
