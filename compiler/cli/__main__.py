"""`python -m compiler.cli` is `mlcomp`."""

import sys

from compiler.cli import main

if __name__ == "__main__":
    sys.exit(main())
