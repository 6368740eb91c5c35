"""ONNX's own tests of nodes, which the onnx package generates, as cases for the compiler."""
