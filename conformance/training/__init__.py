"""Training of whole models: losses of compiled steps against eager and f64, and step times against PyTorch."""
