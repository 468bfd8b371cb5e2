"""Encodes authors' values as stored JSON text, and decodes them. Pure."""
