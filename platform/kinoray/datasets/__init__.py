"""Published sets' files: readers, checks, preparation."""
