"""The embedded server: the Postgres that comes in a wheel, one cluster folder shared by all processes that join.

Locks, not lists of pids, tell which processes have joined. Each holds a shared flock on `<folder>.users`; starting
and stopping is decided under an exclusive flock on `<folder>.lock`. A killed process loses its lock.

Postgres refuses root. Under root it runs as `stepwell`, or as `nobody` if there is no such user, from a copy of its
programs that this user can read. It listens only on a Unix socket, in a folder that only the server's user (and
root) can enter; that folder is the whole of its authentication.
"""

from stepwell.embedded.programs import data_home, installed
from stepwell.embedded.server import EmbeddedServer, join

__all__ = ["EmbeddedServer", "data_home", "installed", "join"]
