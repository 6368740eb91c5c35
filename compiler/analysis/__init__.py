"""What is known of a program: how it accesses memory, what its loops compute. Passes and planners both ask."""
