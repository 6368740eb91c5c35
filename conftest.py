"""Load the plugin in a bare checkout; if it is installed, its entry point has already loaded it by the same name."""

import sys

# pytest refuses `pytest_plugins` in a conftest.py loaded late, as when shape files of another folder are collected.
if "conformance.plugin" not in sys.modules:
    pytest_plugins = ["conformance.plugin"]
