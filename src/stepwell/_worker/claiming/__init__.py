"""Claiming: when a worker claims rows, how many, and which claims it releases."""
