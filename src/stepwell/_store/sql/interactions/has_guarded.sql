-- Whether a question of transport $1 that is to be sent needs a token. Asked by a worker that has no keys to sign one
-- with, when it has taken all it may: what it finds there is mostly the first one.
-- Index: interactions_dispatch, the primary key. Locks: none. Returns: one row.
select exists (select from stepwell.interactions q
               where q.transport = $1 and q.status = 'waiting' and q.next_at <= stepwell.now()
                 and (q.deadline is null or q.deadline > stepwell.now())
                 and exists (select from stepwell.await_units u
                             where u.id = q.unit_id and u.requires_token
                             offset 0)
               order by q.next_at, q.unit_id, q.item
               offset 0) as is_there
