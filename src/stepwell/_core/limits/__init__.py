"""Limits: the requirement of a step, and the admission of rows. Pure."""
