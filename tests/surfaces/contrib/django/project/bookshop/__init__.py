"""A shop, for the tests of the Django app."""
