-- Deliver signals by id, each to another instance, none with a dedup key. Does what signals/deliver.sql does for these,
-- without locking before it writes, and without six arrays. $1: ids, in their order; $2, $3: names and payloads between
-- separators.
-- Keeps: what signals/deliver.sql keeps. The update itself waits for a locked row and judges its newest version: one
--   that ends meanwhile is not reached, and no park is missed. A signal is stored only for a row that was reached, in
--   the same statement; the statement's snapshot does not matter, since it reads only that row.
-- Index: the primary key. See docs/internals/sql-plans.md.
-- Locks: the targets, in the order of ids; waits for other transactions.
-- Returns: the ids that were reached, as one text per queue of those that may run, and one (null) for the others.
with given as materialized (
  select g.id, g.name, g.payload
  from unnest($1::text::bigint[], string_to_array($2::text, E'\x1e'), string_to_array($3::text, E'\x1e'))
       as g(id, name, payload)
), reached as (
  update {schema}.instances i
  set has_inbox = true,
      status = case when i.status = 'awaiting_signal' and g.name = any (i.awaits) then 'runnable' else i.status end,
      due_at = case when i.status = 'awaiting_signal' and g.name = any (i.awaits) then {schema}.now() else i.due_at end,
      deadline = case when i.status = 'awaiting_signal' and g.name = any (i.awaits) then null else i.deadline end
  from given g
  where i.id = any (array[g.id]) and i.status || '' not in ('done', 'failed', 'cancelled')
  returning i.id, g.name, g.payload, case when i.status = 'runnable' and i.hold is null then i.queue end as queue
), stored as (
  insert into {schema}.signals (instance_id, sent_at, name, payload)
  select r.id, {schema}.now(), r.name, r.payload::jsonb
  from reached r
)
select r.queue, string_agg(r.id::text, ',') as ids
from reached r
group by r.queue
