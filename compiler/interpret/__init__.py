"""What programs mean: one evaluator for each IR, arrays in and arrays out."""
