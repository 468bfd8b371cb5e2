-- Delete a page of inboxes of instances that are about to be pruned: up to $2 signals; of the first instance in $1 only
-- those after the id $3.
-- Keeps: run in the transaction of instances/prune.sql, which has locked the instances: none is signalled or retried.
-- Index: signals_inbox, in the given order and no further than the page, so that deleted entries are not read again;
--   the primary key.
-- Locks: the rows.
-- Returns: one row: how many it deleted (fewer than $2 if nothing is left), the instance and the id of the last one.
with page as materialized (
  select s.id, o.id as instance_id, o.place
  from (select g.id, g.place from unnest($1::bigint[]) with ordinality as g(id, place) order by g.place) o
  cross join lateral (
    select s.id
    from {schema}.signals s
    where s.instance_id = o.id and s.id > case when o.place = 1 then $3::bigint else 0 end
    order by s.id
    limit $2::integer
  ) s
  order by o.place, s.id
  limit $2::integer
), emptied as (
  delete from {schema}.signals s
  using page p
  where s.id = any (array[p.id])
), numbered as (
  select p.instance_id, p.id, count(*) over () as number from page p order by p.place desc, p.id desc limit 1
)
select coalesce(max(n.number), 0)::integer as number, max(n.instance_id) as instance_id, max(n.id) as id
from numbered n
