"""A hook of MkDocs: files outside docs/ that pages link to become part of the site, as text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"\]\(\.\./([^)#\s]+)(#[^)\s]*)?\)")


def _place(path: str) -> str:
    """Return where a file stands in the site: Markdown as text, because its own links lead elsewhere."""
    is_text = path.endswith(".md") or (ROOT / path).is_dir()
    return f"project/{path.rstrip('/')}.txt" if is_text else f"project/{path}"


def _content(path: str) -> bytes:
    """Return the content of a file, or a list of the files in a folder."""
    found = ROOT / path
    if found.is_dir():
        inside = sorted(str(file.relative_to(ROOT)) for file in found.rglob("*") if file.is_file())
        return "\n".join(inside).encode()
    return found.read_bytes()


def on_files(files: Any, config: Any) -> Any:
    """Add every file that a page links to."""
    pages = [Path(file.abs_src_path).read_text(encoding="utf-8") for file in files.documentation_pages()]
    for path in sorted({found[1] for page in pages for found in _LINK.finditer(page)}):
        files.append(File.generated(config, _place(path), content=_content(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead links to these files to their place in the site."""
    return _LINK.sub(lambda found: f"]({_place(found[1])})", markdown)
