-- Lock rows that may be admitted, and then every limit, of slots or of tokens, that they need.
-- Keeps: if queue $2 is paused, no row is admitted: a pause, or a change of a limit, waits until this transaction has
--   ended (_may_claim). Every statement that admits, holds or releases takes the limit's lock first and reads with a
--   later snapshot. A concurrent claim skips these rows and finds others. The transaction does not wait for the disk,
--   so that the next one gets the limits at once; workers/mark_started.sql does, before a step runs.
-- Index: the primary keys of instances and of locks. See docs/internals/sql-plans.md.
-- Locks: the rows, skip locked; then the row of each limit, in the order of their numbers (_lock_key), to the end of
--   the transaction. No transaction waits for a row of instances while it holds a limit.
-- Returns: the locked limits; nothing if no row may be admitted any more, or all are locked elsewhere. A row that needs
--   another limit by now is left alone.
with needed as materialized (
  select i.concurrency_limit, i.rate_limit
  from {schema}.instances i
  where i.id = any ($1::bigint[]) and i.status || '' = 'runnable' and i.hold is null
    and (select {schema}._may_claim($2))
  for no key update of i skip locked
), names as materialized (
  select distinct n.kind, n.key, {schema}._lock_key(n.kind, n.key) as number
  from needed d
  cross join lateral (values ('limit', d.concurrency_limit), ('rate', d.rate_limit)) as n(kind, key)
  where n.key is not null
), locked as materialized (
  select l.number
  from {schema}.locks l
  where l.number = any (array(select n.number from names n))
  order by l.number
  for no key update
)
select n.kind, n.key
from names n
where (select count(*) from locked) > 0 and (select set_config('synchronous_commit', 'off', true)) = 'off'
