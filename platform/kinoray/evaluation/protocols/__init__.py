"""How streams are tested: one file per protocol, found by its file name."""
