-- Let the lines of rate limits be looked at now: the limits have changed. $1: their names.
-- Index: buckets by key, from the name to its last part (chr(59) stands right behind the ':'). Locks: the buckets.
update stepwell.buckets b
set next_at = stepwell.now()
from unnest($1::text[]) as g(name)
where b.key = g.name or b.key > g.name || ':' and b.key < g.name || chr(59)
