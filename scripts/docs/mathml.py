"""A hook of MkDocs: formulas become MathML when the site is built, so that pages need no script and no other server."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Replace every formula of a page."""
    content = _BLOCK.sub(lambda found: _mathml(found[1], "block"), content)
    return _INLINE.sub(lambda found: _mathml(found[1], "inline"), content)


def _mathml(formula: str, display: str) -> str:
    return str(convert(html.unescape(formula).strip(), display=display))
