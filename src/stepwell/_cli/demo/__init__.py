"""The demo: a checkout that survives kill -9, in a step and while it is parked, told as it happens."""
