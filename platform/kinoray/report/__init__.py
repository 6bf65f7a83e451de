"""What people read of runs: tables with intervals, figures, and one HTML page."""
