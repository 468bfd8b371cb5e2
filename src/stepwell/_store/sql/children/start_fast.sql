-- Insert children that have no keys and differ only in their states and parents (children's form of
-- instances/start_fast.sql). The first $15 are inserted already claimed by worker $16, which has slots for them: no row
-- is written twice, and none enters the claim's index. $14: their limit requirement, as in instances/commit.sql; nearly
-- always null.
-- Keeps: all are inserted, with their states; ids grow in the order of the list. None is inserted claimed that a claim
--   would not take: of a paused or fair queue, or one that waits for its due time, a key or a limit. The worker's lease
--   needs no check: the reaper returns the claims of dead workers.
-- Index: queues_fair, once.
-- Locks: none but the new rows; if one is inserted claimed, the table of queues, shared, so that a pause waits
--   (_may_claim).
-- Returns: one row: the ids in the order of the list, whether they wait for their due time, how many of the first are
--   claimed, and the clock's time of the claim (other claims may have been marked since the transaction began).
with entries as materialized (
  select nextval('{schema}.instances_id_seq') as id, e.state, e.parent_id, e.parent_round, e.child_index, e.position
  from unnest(string_to_array($1::text, E'\x1e'), $2::text::bigint[], $3::text::integer[], $4::text::integer[])
       with ordinality as e(state, parent_id, parent_round, child_index, position)
), alike as materialized (
  -- What all the children share.
  select coalesce($11::timestamptz, {schema}.instant() + $10::interval, {schema}.instant()) as due_at,
         (select hashtextextended($12::text, 0)
          from {schema}.queues q
          where q.name = $8::text and q.fair_by is not null) as share,
         n.needs ->> 0 as concurrency_limit, n.needs ->> 1 as own_limit, n.needs ->> 2 as rate_limit,
         coalesce((n.needs ->> 3)::integer, 1) as weight, clock_timestamp() as claimed_at
  from (select $14::text::jsonb as needs) n
), born as materialized (
  -- How many are inserted claimed.
  select case
           when $15::integer > 0 and a.due_at <= {schema}.instant() and a.share is null and $13::text is null
             and a.concurrency_limit is null and a.rate_limit is null
           then case when {schema}._may_claim($8::text) then $15::integer end
         end as claimed
  from alike a
), inserted as (
  insert into {schema}.instances
    (id, machine, version, step, queue, priority, due_at, hold, tenant, concurrency_key,
     parent_id, parent_round, child_index, created_at, updated_at, concurrency_limit, own_limit, rate_limit, weight,
     share, status, worker_id, claimed_at, fence)
  overriding system value
  select e.id, $5::text, $6::integer, $7::text, $8::text, $9::smallint, a.due_at,
         case when a.due_at > {schema}.instant() then 'due' end, $12::text, $13::text,
         e.parent_id, e.parent_round, e.child_index, {schema}.instant(), {schema}.instant(),
         a.concurrency_limit, a.own_limit, a.rate_limit, a.weight, a.share,
         case when e.position <= b.claimed then 'executing' else 'runnable' end,
         case when e.position <= b.claimed then $16::bigint end,
         case when e.position <= b.claimed then a.claimed_at end,
         case when e.position <= b.claimed then 1 else 0 end
  from alike a, born b, entries e
), stored as (
  insert into {schema}.instance_data (id, state)
  select e.id, e.state::jsonb
  from entries e
)
select array(select e.id from entries e order by e.id) as ids, a.due_at > {schema}.instant() as later,
       coalesce(b.claimed, 0) as claimed, a.claimed_at
from alike a, born b
