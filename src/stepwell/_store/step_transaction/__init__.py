"""Transactions that a step shares with its outcome."""
