"""Completions: reads, looks up, checks and accepts them."""
