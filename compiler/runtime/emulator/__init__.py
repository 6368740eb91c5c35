"""CUDA text on the CPU: fibers for threads, and a check of every access; the C++ runtime lies beside the Python."""
