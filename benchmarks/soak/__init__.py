"""Millions of steps in one database, pruned as they end: is the last million like the second? `make soak-steps`."""
