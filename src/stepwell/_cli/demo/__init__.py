"""The demo: a checkout survives kill -9, in a step and while it is parked; the output reports each event."""
