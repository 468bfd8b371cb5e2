"""One file per system: how it implements the contract. Each runs in that system's own Python."""
