"""One file per system: how it does what the contract asks for. Each runs in that system's own Python."""
