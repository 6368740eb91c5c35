"""PyTorch's own database of operators, with its sample arguments, as cases for the compiler."""
