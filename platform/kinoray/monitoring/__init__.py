"""What a run says while it lasts."""
