"""One Django migration for each of Stepwell's."""
