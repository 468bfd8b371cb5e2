"""The demo: an order that survives kill -9, told as it happens."""
