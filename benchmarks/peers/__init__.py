"""Other systems beside Stepwell: the same workloads, the same server, each in a virtual environment of its own."""
