-- Find what has kept vacuum from removing dead rows of this database for longer than $2: open transactions with a
-- snapshot or with writes, except autovacuum, which has no user; prepared transactions; replication slots. Only the
-- live worker with the smallest id ($1) gets rows.
-- Keeps: when another role's transaction began may be hidden from this role. Such a transaction is returned at any age,
--   with its number, and the caller compares two results. A slot has no time: it counts by its age in transactions
--   ($3).
-- Index: none; a few rows of system views.
-- Locks: none.
-- Returns: up to 5 rows, the oldest first: the kind, its pid or name, the application, the state, since when, and the
--   number of a transaction with a hidden start.
select h.kind, h.name, h.application, h.state, h.since, h.number
from (select 'transaction' as kind, a.pid::text as name, a.application_name as application, a.state,
             a.xact_start as since,
             case when a.xact_start is null then l.virtualtransaction end as number,
             age(coalesce(a.backend_xid, a.backend_xmin)) as age
      from pg_stat_activity a
      left join pg_locks l on l.pid = a.pid and l.locktype = 'virtualxid' and l.mode = 'ExclusiveLock'
      where a.datname = current_database() and (a.backend_xmin is not null or a.backend_xid is not null)
        and a.usesysid is not null and a.pid <> pg_backend_pid()
        and (a.xact_start < clock_timestamp() - $2::interval
             or a.xact_start is null and l.virtualtransaction is not null)
      union all
      select 'prepared transaction', p.gid, p.owner::text, 'prepared', p.prepared, null, null
      from pg_prepared_xacts p
      where p.database = current_database() and p.prepared < clock_timestamp() - $2::interval
      union all
      select 'replication slot', s.slot_name::text, coalesce(s.plugin::text, 'physical'),
             case when s.active then 'active' else 'inactive' end, null, null, null
      from pg_replication_slots s
      where greatest(age(s.xmin), age(s.catalog_xmin)) > $3) h
where $1::bigint = (select min(w.id) from {schema}.workers w where w.lease_until > pg_catalog.now())
order by h.since nulls last, h.age desc nulls last
limit 5
