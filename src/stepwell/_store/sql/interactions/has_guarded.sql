-- Tell whether an interaction of transport $1 that is to be sent requires a token. A worker without keys to sign one
-- asks this after it has claimed all it may, so the first row read mostly is one.
-- Index: interactions_dispatch, the primary key.
-- Locks: none.
-- Returns: one row.
select exists (select from {schema}.interactions q
               where q.transport = $1 and q.status = 'waiting' and q.next_at <= {schema}.now()
                 and (q.deadline is null or q.deadline > {schema}.now())
                 and exists (select from {schema}.await_units u
                             where u.id = q.unit_id and u.requires_token and u.status || '' = 'waiting'
                             offset 0)
               order by q.next_at, q.unit_id, q.item
               offset 0) as is_there
