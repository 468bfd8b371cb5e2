"""What the test kit needs of the database."""
