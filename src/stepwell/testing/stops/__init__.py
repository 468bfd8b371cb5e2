"""Scenarios with a process that stops between two statements."""
