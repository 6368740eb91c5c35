"""`mlcomp validate`: check shape files and print the errors with their lines, without running any case."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from conformance.shapes.cases import TIERS
from conformance.shapes.files import ShapeFileError, benches, expand, load, shape_files


def main(words: Sequence[str]) -> int:
    """Print one line per shape file; a folder stands for all shape files below it. Return 1 if any is wrong."""
    parser = argparse.ArgumentParser(
        prog="mlcomp validate",
        description="Check shape files without running them, and count their cases and benchmarks.",
    )
    parser.add_argument("names", nargs="+", metavar="FILE", help="a shape file, or a folder with shape files")
    names = parser.parse_args(words).names
    files = shape_files(map(Path, names))
    invalid_count = 0
    for path in files:
        try:
            file = load(path)
            count, timed = len(expand(file, TIERS[-1])), len(benches(file, TIERS[-1]))
        except ShapeFileError as problem:
            invalid_count += 1
            print(problem)
            continue
        print(f"{path}: {count} case{'s' if count != 1 else ''}, {timed} benchmark{'s' if timed != 1 else ''}")
    if not files:
        print(f"no shape files in {', '.join(names)}")
    return 1 if invalid_count or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
