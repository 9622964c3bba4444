"""Without a network, the hub's client is told so before it tries for a minute."""

from __future__ import annotations

import socket

import pytest

from slimilar.utils.hub import skip_retries_offline


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setattr("slimilar.utils.hub.getproxies", dict)
    monkeypatch.setenv("HF_HUB_OFFLINE", "")  # so that it is restored at the end
    monkeypatch.delenv("HF_HUB_OFFLINE")


def set_by(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    import os

    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    skip_retries_offline()
    return "HF_HUB_OFFLINE" in os.environ


def test_a_hub_that_answers_is_asked(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not set_by(f"http://127.0.0.1:{port}", monkeypatch)
    assert set_by(f"http://127.0.0.1:{port}", monkeypatch)


def test_behind_a_proxy_nothing_is_decided(monkeypatch):
    monkeypatch.setattr("slimilar.utils.hub.getproxies", lambda: {"https": "http://proxy:3128"})
    assert not set_by("http://127.0.0.1:1", monkeypatch)
