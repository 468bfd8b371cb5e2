"""What a client process does; it runs no steps."""
