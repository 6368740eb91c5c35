"""ONNX's own tests as cases."""
