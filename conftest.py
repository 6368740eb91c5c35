"""Loads the plugin in a bare checkout; where it is installed, its entry point has loaded it under the same name."""

import sys

# pytest refuses this name in a conftest.py that it meets late, as when the shape files are collected from elsewhere.
if "conformance.plugin" not in sys.modules:
    pytest_plugins = ["conformance.plugin"]
