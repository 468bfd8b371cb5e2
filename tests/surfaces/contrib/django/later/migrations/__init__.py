"""The migrations of the app as a later release has them: tests/support/later_release.py."""
