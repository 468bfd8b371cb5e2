-- List open interactions of a tenant in the order of their deadlines, those without one last; up to $8, after a cursor.
-- $9: the cursor, [deadline or infinity, created, id]. A null filter excludes nothing.
-- Index: interactions_pending, read in order from the cursor, no further than `overdue` allows. The statement is
--   planned for its filters, and uses interactions_assignee or interactions_group if one is given. The row comparison
--   is the only lower bound on purpose: see docs/internals/sql-plans.md.
-- Locks: none.
-- Returns: ids, and the cursor behind each.
with given as materialized (
  select ($9::text::jsonb ->> 0)::timestamptz as deadline, ($9::text::jsonb ->> 1)::timestamptz as created_at,
         ($9::text::jsonb ->> 2)::uuid as id
), start as materialized (
  -- Where to begin: the cursor, or now if only interactions that are not overdue are wanted.
  select coalesce(g.deadline, '-infinity') as deadline, coalesce(g.created_at, '-infinity') as created_at,
         coalesce(g.id, '00000000-0000-0000-0000-000000000000') as id
  from given g
  where $7::boolean is not false or g.deadline > {schema}.now()
  union all
  select {schema}.now(), 'infinity', 'ffffffff-ffff-ffff-ffff-ffffffffffff'
  from given g
  where not $7::boolean and coalesce(g.deadline, '-infinity') <= {schema}.now()
)
select q.id::text as id,
       jsonb_build_array(coalesce(q.deadline, 'infinity'), q.created_at, q.id)::text as cursor
from {schema}.interactions q
join {schema}.await_units u on u.id = any (array[q.unit_id])
where q.tenant = $1 and q.status in ('waiting', 'dispatching', 'dispatched') and u.status || '' = 'waiting'
  and ($2::text is null or q.assignee = $2)
  and ($3::text is null or q.group_name = $3)
  and ($4::text is null or u.machine = $4)
  and ($5::text is null or u.step = $5)
  and ($6::text is null or q.transport = $6)
  and coalesce(q.deadline, 'infinity') <= case when $7::boolean then {schema}.now() else 'infinity' end
  and (coalesce(q.deadline, 'infinity'), q.created_at, q.id)
      > ((select s.deadline from start s), (select s.created_at from start s), (select s.id from start s))
order by coalesce(q.deadline, 'infinity'), q.created_at, q.id
limit $8
