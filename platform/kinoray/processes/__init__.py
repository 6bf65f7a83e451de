"""This process and Ray's: sessions, actors, signals, threads. Knows no run."""
