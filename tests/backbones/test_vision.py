"""The hub is asked where it can be reached, and once it is not, not five times for each file."""

import logging
import socket

import pytest
from huggingface_hub import constants

from kinoray.backbones import vision
from kinoray.backbones.vision import of_the_hub


@pytest.mark.parametrize(
    ("known", "proxies", "offline"), [(True, {}, False), (False, {}, True), (False, {"a": "b"}, False)]
)
def test_without_a_name_server_only_the_cache_is_looked_at(known, proxies, offline, monkeypatch, caplog) -> None:
    def look_up(*_: object) -> list[object]:
        if not known:
            raise socket.gaierror(-2, "Name or service not known")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(vision, "getproxies", lambda: proxies)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with of_the_hub():
        assert constants.HF_HUB_OFFLINE is offline
        logging.getLogger("huggingface_hub").warning("Retrying in 8s")
    assert constants.HF_HUB_OFFLINE is False and caplog.text == ""
    logging.getLogger("huggingface_hub").warning("heard again")
    assert "heard again" in caplog.text
