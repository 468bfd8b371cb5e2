-- Lock the parents whose joins a flush will count, but for those that somebody else holds: their children leave the
-- batch and come back. Keeps: a parent that was pruned holds up nobody; its children end where no one counts.
-- Index: the primary key (offset 0: never joined). Locks: the parents, skip locked.
-- Returns: the ids that were locked or are gone.
with locked as materialized (
  select i.id
  from stepwell.instances i
  where i.id = any ($1::bigint[])
  order by i.id
  for no key update skip locked
)
select l.id
from locked l
union all
select p.id
from unnest($1::bigint[]) as p(id)
where not exists (select from stepwell.instances i where i.id = p.id offset 0)
