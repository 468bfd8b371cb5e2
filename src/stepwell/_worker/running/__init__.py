"""Running: from a claim to the outcome of its step."""
