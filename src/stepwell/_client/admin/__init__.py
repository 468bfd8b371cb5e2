"""Operators' reads and changes: lists, interactions, queues, limits, the schema."""
