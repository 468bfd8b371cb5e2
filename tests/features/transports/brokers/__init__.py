"""Transports over real brokers: what is sent and received over the network, and what no fault loses."""
