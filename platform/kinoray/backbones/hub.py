"""Weights of the Hugging Face hub: from its cache, or fetched where the hub can be reached; quiet either way."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies


@contextmanager
def of_the_hub() -> Iterator[None]:
    """Within the block libraries load from the hub. Where its name is not known, only from the cache: their five
    attempts for each file took a minute, with two lines for each.
    """
    from huggingface_hub import constants

    usual, logged = constants.HF_HUB_OFFLINE, logging.root.manager.disable
    constants.HF_HUB_OFFLINE = usual or not _is_known(constants.ENDPOINT)
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = usual
        logging.disable(logged)


def _is_known(address: str) -> bool:
    """Whether the machine knows an address's host; through a proxy it need not."""
    if getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(address).hostname, None)
    except OSError:
        return False
    return True
