"""Speed, as ratios in one run: Rowlock beside the bare loop that does the same by hand. `make bench`."""
