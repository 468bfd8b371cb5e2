"""Committing: group commit of outcomes, and the notifications and wakeups after it."""
