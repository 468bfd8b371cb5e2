"""Webhooks: signed POST requests."""
