"""The commands, one file each: `configure(parser)` names the arguments, `run(args)` returns the exit code."""
