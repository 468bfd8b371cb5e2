-- Load a page of each inbox, in arrival order.
-- $2: the last id that was read. $3: signals of an instance in one page.
-- Index: signals_inbox, from that id on.
-- Locks: none.
select s.instance_id, s.id, s.name, s.payload::text as payload, s.dedup_key, s.sent_at
from unnest($1::bigint[]) as given(id)
cross join lateral (
  select s.*
  from {schema}.signals s
  where s.instance_id = given.id and s.id > $2::bigint and not s.consumed
  order by s.id
  limit $3::integer
) s
order by s.instance_id, s.id
