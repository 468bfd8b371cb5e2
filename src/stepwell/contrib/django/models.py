"""No models: the tables are Stepwell's own. Django tells only apps with such a module when a `migrate` has ended."""
