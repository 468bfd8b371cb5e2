-- Whether an interaction is overdue, which transports of $2 have something to send, and when that changes next.
-- Index: interactions_deadline; interactions_dispatch, per transport.
-- Locks: none.
with interactions_due as materialized (
  select exists (select from {schema}.interactions q
                 where q.status in ('waiting', 'dispatching', 'dispatched') and q.deadline <= {schema}.now()
                 order by q.deadline
                 offset 0) as has_late,
         array(select n.name
               from unnest($2::text[]) as n(name)
               where exists (select from {schema}.interactions q
                             where q.transport = n.name and q.status = 'waiting' and q.next_at <= {schema}.now()
                             order by q.next_at
                             offset 0)) as to_send,
         least((select q.deadline
                from {schema}.interactions q
                where q.status in ('waiting', 'dispatching', 'dispatched') and q.deadline > {schema}.now()
                order by q.deadline
                limit 1),
               (select min(f.next_at)
                from unnest($2::text[]) as n(name)
                cross join lateral (select q.next_at
                                    from {schema}.interactions q
                                    where q.transport = n.name and q.status = 'waiting' and q.next_at > {schema}.now()
                                    order by q.next_at
                                    limit 1) f)) as next_at
)
