"""The diagram of a pipeline."""
