-- Wake rows that were just parked if a signal they await is already in their inbox, and was not given to the parking
-- step.
-- Keeps: run in the transaction of instances/commit.sql, with a fresh snapshot: a delivery either came before the park
--   and is seen here, or waits for the row's lock and sees the park. The signals that were given are a set of ids, not
--   a watermark: ids commit out of order.
-- Index: the primary key, signals_inbox.
-- Locks: the rows (locked already).
-- Returns: id and queue.
with parked as materialized (
  select p.id, p.handed::bigint[] as handed
  from unnest($1::bigint[], $2::text[]) as p(id, handed)
)
update {schema}.instances i
set status = 'runnable', due_at = {schema}.instant(), deadline = null
from parked p
where i.id = any (array[p.id]) and i.status || '' = 'awaiting_signal'
  and exists (select from {schema}.signals s
              where s.instance_id = i.id and not s.consumed and s.name = any (i.awaits)
                and not s.id = any (p.handed)
              offset 0)
returning i.id, i.queue
