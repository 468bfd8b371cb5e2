"""LISTEN and NOTIFY: notifications between processes."""
