-- Insert new instances, in the order of the arrays, with their states. $17: their limit requirements, as in
-- instances/commit.sql; nearly always null.
-- Keeps: an entry with a key that is held or has a tombstone is not inserted (its position is missing in the result).
--   Keys are inserted in their order, so that two batches with the same keys wait in one direction only. Times count
--   from the transaction, so that a batch of several statements has one; those of a child from the statement, because a
--   transactional step's transaction is as old as the step. In a fair queue each row has its share.
-- Index: instances_guard arbitrates keys; tombstones, one probe per key; queues_fair, once. Keys are looked up in a
--   hash, not joined: see docs/internals/sql-plans.md.
-- Locks: none but the new rows; waits for transactions that insert the same key.
-- Returns: position, id, queue, and whether it waits for its due time.
with entries as materialized (
  select e.*, m.moment, nextval('{schema}.instances_id_seq') as id,
         coalesce(e.at, m.moment + e.delay, m.moment) as due_at
  from unnest($1::text[], $2::integer[], $3::text[], $4::text[], $5::smallint[], $6::interval[], $7::timestamptz[],
              $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::bigint[], $14::integer[],
              $15::integer[], $16::boolean[], $17::text[])
       with ordinality as e(machine, version, step, queue, priority, delay, at,
                            tenant, key, key_scope, concurrency_key, state, parent_id, parent_round, child_index,
                            unchecked, needs, position),
       lateral (select case when e.parent_id is null then {schema}.now() else {schema}.instant() end) as m(moment)
  order by e.position
), inserted as (
  insert into {schema}.instances
    (id, machine, version, step, queue, priority, due_at, hold, tenant, key, key_scope, concurrency_key,
     parent_id, parent_round, child_index, created_at, updated_at, concurrency_limit, own_limit, rate_limit, weight,
     share)
  overriding system value
  select id, machine, version, step, queue, priority, due_at,
         case when due_at > moment then 'due' end, tenant, key, key_scope, concurrency_key,
         parent_id, parent_round, child_index, moment, moment,
         e.needs::jsonb ->> 0, e.needs::jsonb ->> 1, e.needs::jsonb ->> 2, coalesce((e.needs::jsonb ->> 3)::integer, 1),
         case when queue = any (array(select q.name from {schema}.queues q where q.fair_by is not null))
              then hashtextextended(tenant, 0) end
  from entries e
  where e.key is null
     or not exists (select from {schema}.tombstones t
                    where t.tenant = e.tenant and t.key = e.key
                    offset 0)
  order by e.tenant collate "C", e.key collate "C", e.position
  on conflict (tenant, key) where key is not null and (key_scope = 'forever' or finished_at is null) do nothing
  returning id
), stored as (
  insert into {schema}.instance_data (id, state, unchecked)
  select e.id, e.state::jsonb, coalesce(e.unchecked, false)
  from entries e
  where e.key is null or e.id in (select id from inserted)
)
select (e.position - 1)::integer as position, e.id, e.queue, e.due_at > e.moment as later
from entries e
where e.key is null or e.id in (select id from inserted)
order by e.position
