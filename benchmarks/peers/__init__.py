"""Other systems beside Stepwell: the same workloads, the same server, each in its own virtual environment."""
