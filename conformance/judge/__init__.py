"""Whether a case is right: references, bounds, every stage run and held to them."""
