"""What claiming and committing 100 rows costs the server, whatever other rows there are: `make growth`."""
