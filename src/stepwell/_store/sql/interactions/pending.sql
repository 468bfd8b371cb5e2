-- List open questions of a tenant in the order of their deadlines, those without one last; up to $8, after a cursor.
-- $9: the cursor, [deadline or infinity, created, id]. A filter that is null lets everything pass.
-- Index: interactions_pending, read in its order from the cursor on, and no further than `overdue` says; the statement
--   is planned anew for its filters, and comes through interactions_assignee or interactions_group if one is given.
--   The comparison of rows is the only lower bound: beside another one the index would be read from that one on.
-- Locks: none. Returns: ids, and the cursor behind each.
with given as materialized (
  select ($9::text::jsonb ->> 0)::timestamptz as deadline, ($9::text::jsonb ->> 1)::timestamptz as created_at,
         ($9::text::jsonb ->> 2)::uuid as id
), start as materialized (
  select coalesce(g.deadline, '-infinity') as deadline, coalesce(g.created_at, '-infinity') as created_at,
         coalesce(g.id, '00000000-0000-0000-0000-000000000000') as id
  from given g
  where $7::boolean is not false or g.deadline > stepwell.now()
  union all
  select stepwell.now(), 'infinity', 'ffffffff-ffff-ffff-ffff-ffffffffffff'
  from given g
  where not $7::boolean and coalesce(g.deadline, '-infinity') <= stepwell.now()
)
select q.id::text as id,
       jsonb_build_array(coalesce(q.deadline, 'infinity'), q.created_at, q.id)::text as cursor
from stepwell.interactions q
join stepwell.await_units u on u.id = any (array[q.unit_id])
where q.tenant = $1 and q.status in ('waiting', 'dispatching', 'dispatched')
  and ($2::text is null or q.assignee = $2)
  and ($3::text is null or q.group_name = $3)
  and ($4::text is null or u.machine = $4)
  and ($5::text is null or u.step = $5)
  and ($6::text is null or q.transport = $6)
  and coalesce(q.deadline, 'infinity') <= case when $7::boolean then stepwell.now() else 'infinity' end
  and (coalesce(q.deadline, 'infinity'), q.created_at, q.id)
      > ((select s.deadline from start s), (select s.created_at from start s), (select s.id from start s))
order by coalesce(q.deadline, 'infinity'), q.created_at, q.id
limit $8
