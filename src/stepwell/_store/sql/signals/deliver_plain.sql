-- Deliver signals that need no more than their targets: each by id to another instance, none with a dedup key. What
-- deliver.sql does, without locking before it writes, and without six arrays. All others: deliver.sql.
-- $1: ids, in their order; $2, $3: names and payloads between separators (see instances/commit_bare.sql).
-- Keeps: what deliver.sql keeps. The row's newest version is judged by the update itself, which waits for whoever
--   holds it and looks again: one that ends meanwhile is not reached, a park is not missed. A signal is stored only for
--   a row that was reached, in the same statement; its snapshot does not matter, since what it reads is that row.
-- Index: the primary key (any (array[…]): see instances/commit.sql). Locks: the targets, in the order of ids; waits
--   for their commits.
-- Returns: the ids that were reached, as one text for each queue of those that may run, and one (null) for the others.
with given as materialized (
  select g.id, g.name, g.payload
  from unnest($1::text::bigint[], string_to_array($2::text, E'\x1e'), string_to_array($3::text, E'\x1e'))
       as g(id, name, payload)
), reached as (
  update stepwell.instances i
  set has_inbox = true,
      status = case when i.status = 'awaiting_signal' and g.name = any (i.awaits) then 'runnable' else i.status end,
      due_at = case when i.status = 'awaiting_signal' and g.name = any (i.awaits) then stepwell.now() else i.due_at end,
      deadline = case when i.status = 'awaiting_signal' and g.name = any (i.awaits) then null else i.deadline end
  from given g
  where i.id = any (array[g.id]) and i.status || '' not in ('done', 'failed', 'cancelled')
  returning i.id, g.name, g.payload, case when i.status = 'runnable' and i.hold is null then i.queue end as queue
), stored as (
  insert into stepwell.signals (instance_id, sent_at, name, payload)
  select r.id, stepwell.now(), r.name, r.payload::jsonb
  from reached r
)
select r.queue, string_agg(r.id::text, ',') as ids
from reached r
group by r.queue
