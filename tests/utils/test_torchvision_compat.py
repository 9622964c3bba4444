"""torchvision is imported from any thread, and its absence is reported."""

from __future__ import annotations

import threading

import pytest

from slimilar.errors import InvalidInput
from slimilar.utils import torchvision_compat as _torchvision


def test_torchvision_from_many_threads_at_once():
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(_torchvision.import_torchvision("torchvision.ops")))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(_torchvision._declared) <= 1
    assert len(set(map(id, found))) == 1


def test_torchvision_that_is_not_installed():
    with pytest.raises(InvalidInput, match="pip install"):
        _torchvision.import_torchvision("torchvision.no_such_module")
