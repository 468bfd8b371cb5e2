-- Take rows behind a busy key out of the claim's index. Run under keys/lock.sql: the snapshot is taken after it.
-- Keeps: a row is held only while an executing row holds its key.
-- Index: the primary key, driven from the ids (|| '' and any (array[…]): see instances/commit.sql); the key's holder
--   by one probe per row (offset 0: never joined). Locks: the rows, skip locked.
-- Returns: what was held, with the limit of which it takes no slot now; the others may be claimed.
with behind as materialized (
  select i.id
  from stepwell.instances i
  where i.id = any ($1::bigint[]) and i.status || '' = 'runnable' and i.hold is null
    and exists (select from stepwell.instances e
                where e.concurrency_key = i.concurrency_key and e.status = 'executing'
                offset 0)
  for no key update of i skip locked
)
update stepwell.instances i
set hold = 'key'
from behind b
where i.id = any (array[b.id])
returning i.id, i.concurrency_limit
