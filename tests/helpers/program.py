"""The real program, many times, for one import of torch: a process that has imported it forks for every command.

A command has a process, an exit code and a folder of its own, as if it had been typed; only the seconds that torch
takes to be imported are spent once. Start it with `python -m helpers.program`; it reads and answers lines of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, TextIO

from helpers.paths import TESTS


class Program:
    """`slimilar`, ready to be called."""

    def __init__(self) -> None:
        known = {name: value for name, value in os.environ.items() if name != "SLIMILAR_DATA"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "helpers.program"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=TESTS, env={**known, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def __call__(
        self, *words: str, cwd: Path | None = None, columns: int = 200
    ) -> subprocess.CompletedProcess[str]:
        """Run a command and return its exit code and what it printed."""
        request = {"words": words, "cwd": str(cwd or Path.cwd()), "columns": str(columns)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return subprocess.CompletedProcess(words, answer["code"], answer["stdout"], answer["stderr"])

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)  # closes its input, at which it ends


def _serve() -> None:
    import slimilar.cli
    import slimilar.pipeline
    import slimilar.train  # noqa: F401 (what takes long, before the forks)

    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
            child = os.fork()
            if child == 0:
                _become(request, stdout, stderr)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said = {name: _read(file) for name, file in (("stdout", stdout), ("stderr", stderr))}
        sys.stdout.write(json.dumps({"code": code, **said}) + "\n")
        sys.stdout.flush()


def _become(request: dict[str, Any], stdout: TextIO, stderr: TextIO) -> None:
    """Run a command in this process, which ends with it."""
    from slimilar.cli import main

    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(stdout.fileno(), 1)
    os.dup2(stderr.fileno(), 2)
    os.chdir(request["cwd"])
    os.environ["COLUMNS"] = request["columns"]
    sys.argv = ["slimilar", *request["words"]]
    code: Any = 1
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _read(file: TextIO) -> str:
    file.seek(0)
    return file.read()


if __name__ == "__main__":
    _serve()
