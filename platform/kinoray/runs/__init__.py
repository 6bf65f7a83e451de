"""What a run is: its request, record, folder and result."""
