"""The engine on a caller's connection, by several drivers and by SQL functions."""
