-- Load inboxes in arrival order.
-- Index: signals_inbox.
-- Locks: none.
select s.instance_id, s.id, s.name, s.payload::text as payload, s.dedup_key, s.sent_at
from {schema}.signals s
where s.instance_id = any ($1::bigint[]) and not s.consumed
order by s.instance_id, s.id
