"""Database access of the test kit."""
