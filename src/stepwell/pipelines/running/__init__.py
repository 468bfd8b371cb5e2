"""Running the steps of a pipeline."""
