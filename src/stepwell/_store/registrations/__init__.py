"""What workers register in the database: themselves, their machines and their queues."""
