"""Check instruction tables: for each row, kernels that use it, with inputs and expected outputs.

A row states three things about an instruction: its meaning as Tile IR, the layouts of its operands, and the device
function that performs it, with one body for the GPU and one for the CPU. Kernels are generated from the row alone, so a
new row brings its own checks.
"""
