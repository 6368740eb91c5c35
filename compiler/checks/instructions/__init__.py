"""Whether rows of instructions are true: a row goes in; kernels that use it, their inputs and what must come out, out.

Each row says three things of one instruction: its meaning as Tile IR, where its operands lie, and the device function
that performs it, which has a body for the GPU and one for the CPU. The kernels are made from the row alone, so a new
row brings its own checks.
"""
