"""Importing it imports what a variable of the process names."""

import os
from importlib import import_module

VARIABLE = "KINORAY_PRELOADED"
"""Names of modules, separated by commas."""

for name in filter(None, os.environ.get(VARIABLE, "").split(",")):
    import_module(name)
