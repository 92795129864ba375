"""What runs: one background service a file, one life cycle each."""
