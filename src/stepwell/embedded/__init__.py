"""The embedded server: the real Postgres that comes in a wheel, one cluster folder shared by whoever joins.

Who is there is known from locks, not from lists of pids. Every joined process holds a shared flock on
`<folder>.users`; starting and stopping is decided under an exclusive flock on `<folder>.lock`. A killed
process loses its lock with its life.

Postgres refuses root, so that for root it runs as `nobody`, from a copy of its programs that `nobody` can
reach. It listens on a Unix socket alone, in a folder that only the server's user (and root) can enter; that
folder is the whole of its authentication.
"""

from stepwell.embedded.programs import data_home, installed
from stepwell.embedded.server import EmbeddedServer, join

__all__ = ["EmbeddedServer", "data_home", "installed", "join"]
