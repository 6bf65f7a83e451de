"""Importing it imports what a variable of the process names."""

import gc
import os
from contextlib import suppress
from importlib import import_module

VARIABLE = "KINORAY_PRELOADED"
"""Names of modules, separated by commas."""

if names := [name for name in os.environ.get(VARIABLE, "").split(",") if name]:
    gc.disable()  # modules come to stay: to look through them for garbage meanwhile takes a sixth of the time
    for name in names:
        with suppress(Exception):  # who needs it imports it again, and says what is wrong
            import_module(name)
    gc.freeze()
    gc.enable()
