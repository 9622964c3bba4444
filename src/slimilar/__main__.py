"""`python -m slimilar` is the same as `slimilar`."""

from slimilar.cli import main

if __name__ == "__main__":
    main()
