"""A backend of another library."""


class Elsewhere:
    """Never enqueues."""
