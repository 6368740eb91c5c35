"""What the compiler made before: texts recorded and compared."""
