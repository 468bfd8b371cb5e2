"""Scripted transports, and the conformance suites of transports."""
