"""The operations of the hot path, one function each: start, claim, commit, deliver, complete."""
