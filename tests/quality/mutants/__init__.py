"""Statements and SQL functions broken on purpose, one at a time: some test has to fail (`make mutants`)."""
