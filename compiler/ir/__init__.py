"""What programs are: nodes, types, expressions, text, and one vocabulary for each stage."""
