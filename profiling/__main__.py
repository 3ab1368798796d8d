"""`python profiling run ...`: the command line without an install."""

from proftrack.cli import main

if __name__ == "__main__":
    main()
