"""Files that may not be read, also where the tests run as root."""

import os
import shutil

import pytest

RIGHTS = "-dac_override,-dac_read_search"


def obeying_modes() -> list[str]:
    """What stands before a command so that the modes of files hold for it."""
    if os.geteuid():
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root may read everything, and there is no setpriv")
    return ["setpriv", f"--bounding-set={RIGHTS}", f"--inh-caps={RIGHTS}"]
