"""What a way to run a kernel is estimated to cost: one model for each kind of target, from the target's own numbers."""
