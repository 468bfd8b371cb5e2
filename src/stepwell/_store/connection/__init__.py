"""Connections: how they are made, how a statement is sent on one, and what its errors mean."""
