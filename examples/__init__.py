"""Examples, each in a folder of its own."""
