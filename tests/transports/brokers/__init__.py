"""Transports over real brokers: what goes out and comes back over the wire, and what no fault loses."""
