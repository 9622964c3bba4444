"""The log of a run: JSON lines, and TensorBoard's files where it is installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from slimilar.errors import TrainingError
from slimilar.train.checkpoint import write_file

NAME = "log.jsonl"


class TrainingLog:
    """Appends one JSON object a line. A resumed run first drops what came after its checkpoint."""

    def __init__(
        self, folder: Path, position: tuple[int, int] = (0, 0), tensorboard: bool | None = None
    ) -> None:
        self.file = folder / NAME
        kept = [entry for entry in read_log(folder) if (entry["epoch"], entry["step"]) <= position]
        write_file(self.file, "".join(json.dumps(entry) + "\n" for entry in kept).encode())
        self._board = _board(folder, position[1], tensorboard)

    def write(self, entry: dict[str, Any]) -> None:
        """Append an entry."""
        # Not synced to the disk: entries after the last checkpoint are dropped by a resumed run anyway.
        try:
            with open(self.file, "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        except OSError as error:
            raise TrainingError(
                f"{self.file} could not be written ({error.strerror}); the last checkpoint is intact, "
                "so free some space, then resume"
            ) from error
        if self._board is not None:
            for name, value in entry.items():
                if isinstance(value, float):
                    self._board.add_scalar(name, value, entry["step"])

    def close(self) -> None:
        """Close TensorBoard's file."""
        if self._board is not None:
            self._board.close()


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of a log; a last line that a crash cut short is left out."""
    try:
        lines = (folder / NAME).read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _board(folder: Path, step: int, wanted: bool | None) -> Any:
    if wanted is False or importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)
