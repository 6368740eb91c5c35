"""How to run a program, as a value: steps that print, parse and are applied one at a time."""
