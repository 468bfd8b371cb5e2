"""A backend of somebody else's."""


class Elsewhere:
    """Never made."""
