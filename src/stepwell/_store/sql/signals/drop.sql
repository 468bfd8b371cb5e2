-- Drop a page of inboxes of instances that are done, with their dedup keys: up to $3 signals; of the first instance in
-- $1 only those after the id $4.
-- Keeps: an instance that was restarted meanwhile keeps its inbox: it may have been signalled since. $2: not in the
--   transaction that ended the instances; then there is no wait for the disk, since a restart and the pruner drop what
--   is left.
-- Index: signals_inbox, in the given order and no further than the page, so that deleted entries are not read again;
--   the primary keys.
-- Locks: the rows.
-- Returns: one row: how many it dropped (fewer than $3 if nothing is left), the instance and the id of the last one.
with unsynced as materialized (
  select case when $2::boolean then set_config('synchronous_commit', 'off', true) end
), page as materialized (
  select s.id, d.id as instance_id, d.place
  from unsynced
  cross join (select g.id, g.place from unnest($1::bigint[]) with ordinality as g(id, place) order by g.place) d
  cross join lateral (
    select s.id
    from {schema}.signals s
    where s.instance_id = d.id and s.id > case when d.place = 1 then $4::bigint else 0 end
    order by s.id
    limit $3::integer
  ) s
  where exists (select from {schema}.instances i
                where i.id = d.id and i.status || '' = 'done'
                offset 0)
  order by d.place, s.id
  limit $3::integer
), dropped as (
  delete from {schema}.signals s
  using page p
  where s.id = any (array[p.id])
), numbered as (
  select p.instance_id, p.id, count(*) over () as number from page p order by p.place desc, p.id desc limit 1
)
select coalesce(max(n.number), 0)::integer as number, max(n.instance_id) as instance_id, max(n.id) as id
from numbered n
