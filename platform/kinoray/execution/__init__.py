"""What is done with a run: start, resume, extend."""
