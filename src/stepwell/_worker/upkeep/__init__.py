"""Upkeep: background services of a worker, for itself and for the cluster."""
