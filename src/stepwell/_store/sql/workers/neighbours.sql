-- List the other workers of this host and boot, to find out which of them have died.
-- Locks: none.
select w.id, w.pid, w.process
from {schema}.workers w
where w.host = $1 and w.boot = $2 and w.id <> $3
