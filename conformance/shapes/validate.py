"""Shape files in; what is wrong with each, by its line, out: `mlcomp validate` starts this, which runs no case."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from conformance.shapes.cases import TIERS
from conformance.shapes.files import ShapeFileError, below, benches, expand, load


def main(words: Sequence[str]) -> int:
    """One line a file, or for a folder one for each shape file in it and below; 1 when any is wrong."""
    parser = argparse.ArgumentParser(prog="mlcomp validate", description="Check shape files without running them.")
    parser.add_argument("names", nargs="+", metavar="FILE", help="a shape file, or a folder of them")
    names = parser.parse_args(words).names
    files = below(map(Path, names))
    wrong = 0
    for path in files:
        try:
            file = load(path)
            cases, timed = len(expand(file, TIERS[-1])), len(benches(file, TIERS[-1]))
        except ShapeFileError as problem:
            wrong += 1
            print(problem)
            continue
        print(f"{path}: {cases} case{'s' if cases != 1 else ''}, {timed} benchmark{'s' if timed != 1 else ''}")
    if not files:
        print(f"no shape files in {', '.join(names)}")
    return 1 if wrong or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
