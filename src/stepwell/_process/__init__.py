"""Shared parts of every engine process: the service loop, threads, the log of outages, probes, counters."""
