"""What the transports over brokers share."""
