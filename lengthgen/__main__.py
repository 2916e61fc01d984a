"""`python -m lengthgen`: the command line."""

import sys

from lengthgen.cli import main

if __name__ == "__main__":
    sys.exit(main())
