"""PyTorch's database of operators (OpInfo) with its sample arguments, as cases for the compiler."""
