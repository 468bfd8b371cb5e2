"""Transports over real sockets: what goes out, what comes back, and where nothing goes."""
