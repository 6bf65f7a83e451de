"""From features to ranks and scores."""
