"""Committing: group commit of outcomes, and what follows from it."""
