-- Put rows behind a busy key on hold. Run under concurrency_keys/lock.sql, with a later snapshot.
-- Keeps: a row is held only while an executing row holds its key.
-- Index: the primary key, driven from the ids; the key's holder by one probe per row. See docs/internals/sql-plans.md.
-- Locks: the rows, skip locked.
-- Returns: the held rows, each with its concurrency limit, of which it takes no slot now; the others may be claimed.
with behind as materialized (
  select i.id
  from {schema}.instances i
  where i.id = any ($1::bigint[]) and i.status || '' = 'runnable' and i.hold is null
    and exists (select from {schema}.instances e
                where e.concurrency_key = i.concurrency_key and e.status = 'executing'
                offset 0)
  for no key update of i skip locked
)
update {schema}.instances i
set hold = 'key'
from behind b
where i.id = any (array[b.id])
returning i.id, i.concurrency_limit
