"""Databases for harnesses: a pool in its own thread, and the stock that it keeps."""
