"""The loop and what it needs: the page to read."""
