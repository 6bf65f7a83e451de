"""What people look at: words, progress, plots. Knows no run."""
