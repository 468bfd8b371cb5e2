"""Scenarios with a crash before and after every commit."""
