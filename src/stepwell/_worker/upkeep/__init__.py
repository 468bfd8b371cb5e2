"""Upkeep: what a worker does beside its steps, for itself and for the cluster."""
