"""What claiming and committing 100 rows costs the server, whatever lies around them: `make growth`."""
