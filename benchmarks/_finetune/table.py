"""The table of the fine-tuning benchmark."""
from typing import Any
def table(rows: list[dict[str, Any]], held_out: list[dict[str, Any]]) -> str:
    return "\n"
