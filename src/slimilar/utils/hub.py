"""The hub from which timm downloads weights."""

from __future__ import annotations

import os
import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

_SECONDS = 5.0


def skip_retries_offline() -> None:
    """Tell the hub's client that there is no network, if so: it would try again for a minute.

    What was downloaded before is still found. To be called before `huggingface_hub` is imported, which reads the
    variable once. Behind a proxy only the client itself can tell, so that nothing is done.
    """
    if getproxies() or "HF_HUB_OFFLINE" in os.environ:
        return
    address = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), timeout=_SECONDS).close()
    except OSError:
        os.environ["HF_HUB_OFFLINE"] = "1"
