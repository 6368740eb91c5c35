"""Fuzzing: random torch programs, compiled as users compile them, and compared with eager and with f64.

`asked.py` reads the options of a run, `program.py` defines programs, and `operations.py` with `texts.py`, `windows.py`,
`placing.py` and `recurrent.py` their calls. `generate.py` draws a program by means of a `Drawing`; `runs.py` runs one,
also in f64. `check.py` compares `torch.compile` with eager, `exported.py` does the same for `torch.export`, and
`blame.py` finds the stage and pass to blame. `relations.py` derives relations between results on different data
(metamorphic testing), from the analyses `axes.py` and `degrees.py` of the graph that `tracing.py` makes.
`schedules.py` tries random schedules of the kernels. `corpus.py` keeps programs that reach new compiler rules, and
`mutate.py` derives other programs from them. `reduce.py` minimises a failing program, and `regression.py` writes its
repro folder and its shape file.
"""
