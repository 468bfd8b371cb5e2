-- Insert children that have no keys and differ in nothing but their states and parents: what instances/start_alike.sql
-- does for other instances. $14: what they need of limits, as in instances/commit.sql; null nearly always.
-- The first $15 are born in the hands of worker $16, which has slots for them: as if it had claimed them, but no row is
--   written a second time, and none goes through the claim's index.
-- Keeps: all are inserted, with their states; ids grow in the order of the list. None is born claimed that a claim
--   would have left: of a paused queue, or a fair one, or that waits for its time, a key or a limit. Whether its worker
--   lives needs no look: its parent was just committed by it, and what the dead carry is returned whenever they die.
-- Index: queues_fair, once. Locks: none but the new rows; the queue's, shared, if one is born claimed: who pauses it
--   waits for that. Waits for nobody else.
-- Returns: one row: the ids in the order of the list, whether they wait for their due time, how many of the first are
--   claimed, and since when (the clock, and not the transaction's begin: other claims may have been noted since).
with entries as materialized (
  select nextval('stepwell.instances_id_seq') as id, e.state, e.parent_id, e.parent_round, e.child_index, e.position
  from unnest(string_to_array($1::text, E'\x1e'), $2::text::bigint[], $3::text::integer[], $4::text::integer[])
       with ordinality as e(state, parent_id, parent_round, child_index, position)
), alike as materialized (
  select coalesce($11::timestamptz, stepwell.now() + $10::interval, stepwell.now()) as due_at,
         (select hashtextextended($12::text, 0)
          from stepwell.queues q
          where q.name = $8::text and q.fair_by is not null) as share,
         n.needs ->> 0 as concurrency_limit, n.needs ->> 1 as own_limit, n.needs ->> 2 as rate_limit,
         coalesce((n.needs ->> 3)::integer, 1) as weight, clock_timestamp() as claimed_at
  from (select $14::text::jsonb as needs) n
), born as materialized (
  select case
           when $15::integer > 0 and a.due_at <= stepwell.now() and a.share is null and $13::text is null
             and a.concurrency_limit is null and a.rate_limit is null
           then case when stepwell._may_claim($8::text) then $15::integer end
         end as claimed
  from alike a
), inserted as (
  insert into stepwell.instances
    (id, machine, version, step, queue, priority, due_at, hold, tenant, concurrency_key,
     parent_id, parent_round, child_index, created_at, updated_at, concurrency_limit, own_limit, rate_limit, weight,
     share, status, worker_id, claimed_at, fence)
  overriding system value
  select e.id, $5::text, $6::integer, $7::text, $8::text, $9::smallint, a.due_at,
         case when a.due_at > stepwell.now() then 'due' end, $12::text, $13::text,
         e.parent_id, e.parent_round, e.child_index, stepwell.now(), stepwell.now(),
         a.concurrency_limit, a.own_limit, a.rate_limit, a.weight, a.share,
         case when e.position <= b.claimed then 'executing' else 'runnable' end,
         case when e.position <= b.claimed then $16::bigint end,
         case when e.position <= b.claimed then a.claimed_at end,
         case when e.position <= b.claimed then 1 else 0 end
  from alike a, born b, entries e
), stored as (
  insert into stepwell.instance_data (id, state)
  select e.id, e.state::jsonb
  from entries e
)
select array(select e.id from entries e order by e.id) as ids, a.due_at > stepwell.now() as later,
       coalesce(b.claimed, 0) as claimed, a.claimed_at
from alike a, born b
