"""A worker's services for interactions: send them, receive completions, reconcile."""
