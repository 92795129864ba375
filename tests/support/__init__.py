"""What the suite stands on: servers, databases, waiting, and the kits for races and kills."""
