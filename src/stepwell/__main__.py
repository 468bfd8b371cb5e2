"""`python -m stepwell`: the command line."""

import sys

from stepwell._cli.main import main

sys.exit(main())
