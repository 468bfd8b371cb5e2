"""Payments from CSV files, each asked of a provider over Kafka, and written back: one file per input."""
