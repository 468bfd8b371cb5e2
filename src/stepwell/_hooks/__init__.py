"""Events for callbacks of the application."""
