"""`mlcomp passes`: the passes in order, with what holds after each."""

from __future__ import annotations

import argparse


def passes(options: argparse.Namespace) -> int:
    from compiler.pipeline import pass_table  # noqa: PLC0415

    print(pass_table())
    return 0
