"""One migration of Django's for each of Stepwell's."""
