"""What Stepwell reaches, beside what Postgres itself can do: `make bench`."""
