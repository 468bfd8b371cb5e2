"""Transports over real sockets: what is sent, what is received, and which addresses are refused."""
