"""Random torch programs, compiled as a user would compile them, and held to eager and to f64.

`program.py` says what a program is, `operations.py` what may stand in one, `generate.py` draws one, `runs.py` runs it
by eager, in f64 and through `torch.compile`, `check.py` compares, `blame.py` finds the stage that is to blame, and
`items.py` makes items of pytest of it.
"""
