"""What operators read and change: lists, interactions, queues, limits, the schema."""
