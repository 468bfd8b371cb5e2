"""Registrations of workers in the database: of themselves, their machines and their queues."""
