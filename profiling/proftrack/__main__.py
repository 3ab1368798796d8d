"""`python -m proftrack`."""

from proftrack.cli import main

if __name__ == "__main__":
    main()
