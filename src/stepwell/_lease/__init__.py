"""The lease of a worker, and the identity of its process."""
