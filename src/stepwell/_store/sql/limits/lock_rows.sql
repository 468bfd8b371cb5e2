-- Lock rows that may be admitted, and then every limit, of slots or of tokens, that they need: both are looked at then.
-- Keeps: whoever admits, holds, frees or lets flow takes this lock first, and looks with a snapshot taken after it. Who
--   admits also shares the lock of the limit's name, which is of all its parts; limits/lock_name.sql takes that alone:
--   so when a change of the limit is answered, nobody admits by the old one any more.
--   Whoever claims meanwhile passes these rows over, and finds others: it need not wait for a look at the same ones.
--   What hangs on it need not wait for the disk, so that the next one has the limits at once; workers/begin.sql does,
--   before a step runs.
-- Index: the primary key (|| '': no other).
-- Locks: the rows, skip locked; then one advisory lock per name, then one per limit, each in the order of their hashes,
--   held to the commit. Nobody waits for a row while it holds a limit.
-- Returns: what was locked; nothing if none of the rows may be admitted any more, or all are in other hands. A row that
--   needs another limit by now is left alone.
with needed as materialized (
  select i.concurrency_limit, i.rate_limit
  from stepwell.instances i
  where i.id = any ($1::bigint[]) and i.status || '' = 'runnable' and i.hold is null
  for no key update of i skip locked
), names as materialized (
  select distinct n.kind, n.key, hashtextextended('stepwell:' || n.kind || ':' || n.key, 0) as hash
  from needed d
  cross join lateral (values ('limit', d.concurrency_limit), ('rate', d.rate_limit)) as n(kind, key)
  where n.key is not null
), shared as materialized (
  select count(pg_advisory_xact_lock_shared(s.hash)::text) as number
  from (select distinct hashtextextended('stepwell ' || n.kind || ':' || split_part(n.key, ':', 1), 0) as hash
        from names n
        order by 1) s
)
select n.kind, n.key, pg_advisory_xact_lock(n.hash)::text as locked
from (select kind, key, hash from names order by hash) n
where (select number from shared) > 0 and (select set_config('synchronous_commit', 'off', true)) = 'off'
