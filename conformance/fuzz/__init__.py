"""Random torch programs, compiled as a user would compile them, and held to eager and to f64.

`asked.py` says what a run is asked for, `program.py` what a program is, `operations.py` and `texts.py` what may stand
in one. `generate.py` draws one, by a `Drawing`, and `runs.py` runs it, `wide.py` in f64. `check.py` compares
`torch.compile` with eager, `blame.py` finds the stage that is to blame, `repro.py` keeps what it takes to see it again.
`relations.py` says what other data make of results, by what `axes.py` and `degrees.py` read from the graph of
`tracing.py`. `coverage.py` notes which rules of the compiler a program reaches, `corpus.py` keeps those that reach new
ones, and `mutate.py` makes others of them. `schedules.py` tries other schedules of the kernels. `reduce.py` makes a
program that goes wrong small, and `regression.py` a shape file of it.
"""
