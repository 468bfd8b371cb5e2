"""No models: the tables are Stepwell's own. Django sends `post_migrate` only to apps with such a module."""
