"""The app as a later release has it."""
