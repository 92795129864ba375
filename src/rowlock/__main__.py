"""`python -m rowlock`: the same command as `rowlock`."""

from rowlock.cli import main

if __name__ == "__main__":
    main()
