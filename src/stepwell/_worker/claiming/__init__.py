"""Claiming: when a worker claims rows, how many, and what it gives back."""
