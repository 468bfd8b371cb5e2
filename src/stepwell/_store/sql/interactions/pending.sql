-- List open questions of a tenant in the order of their deadlines, those without one last; up to $8, after a cursor.
-- $9: the cursor, [deadline or infinity, created, id]. A filter that is null lets everything pass.
-- Index: interactions_pending, read in its order from the cursor on, and no further than `overdue` says; the statement
--   is planned anew for its filters, and comes through interactions_assignee or interactions_group if one is given.
-- Locks: none. Returns: ids, and the cursor behind each.
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
  and coalesce(q.deadline, 'infinity') > case when not $7::boolean then stepwell.now() else '-infinity' end
  and (coalesce(q.deadline, 'infinity'), q.created_at, q.id)
      > (coalesce(($9::text::jsonb ->> 0)::timestamptz, '-infinity'),
         coalesce(($9::text::jsonb ->> 1)::timestamptz, '-infinity'),
         coalesce(($9::text::jsonb ->> 2)::uuid, '00000000-0000-0000-0000-000000000000'))
order by coalesce(q.deadline, 'infinity'), q.created_at, q.id
limit $8
