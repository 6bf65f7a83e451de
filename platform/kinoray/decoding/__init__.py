"""One clip: from a file to frames."""
