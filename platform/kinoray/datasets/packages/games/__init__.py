"""What the pictures and plain texts of single games hold: one file per game, each with `clips(folder)`.

Scripts of a game are read as text and never run.
"""
