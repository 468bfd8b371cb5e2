"""The operations of a client process, which runs no steps."""
