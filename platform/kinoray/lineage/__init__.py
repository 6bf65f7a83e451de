"""Runs that begin where others were."""
