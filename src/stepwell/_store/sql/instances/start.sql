-- Insert new instances, in the order of the arrays, with their states.
-- Keeps: an entry whose key is occupied or buried is not inserted (its position is missing in the answer); keys are
--   inserted in their order, so that two batches with the same keys wait for one another in one direction only.
--   An entry without a key is always inserted; those with one are looked up in a hashed subplan, not joined: a join
--   of two CTEs is quadratic wherever the planner takes it for small.
--   $17: what each needs of limits, as in commit.sql; null for nearly every one. In a fair queue each has its share.
-- Index: instances_guard arbitrates keys; tombstones, one probe per key; queues_fair, once.
-- Locks: none but the new rows; waits for whoever is inserting the same key.
-- Returns: position, id, queue, and whether it waits for its due time.
with entries as materialized (
  select e.*, nextval('stepwell.instances_id_seq') as id,
         coalesce(e.at, stepwell.now() + e.delay, stepwell.now()) as due_at
  from unnest($1::text[], $2::integer[], $3::text[], $4::text[], $5::smallint[], $6::interval[], $7::timestamptz[],
              $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::bigint[], $14::integer[],
              $15::integer[], $16::boolean[], $17::text[])
       with ordinality as e(machine, version, step, queue, priority, delay, at,
                            tenant, key, key_scope, concurrency_key, state, parent_id, parent_round, child_index,
                            unchecked, needs, position)
  order by e.position
), inserted as (
  insert into stepwell.instances
    (id, machine, version, step, queue, priority, due_at, hold, tenant, key, key_scope, concurrency_key,
     parent_id, parent_round, child_index, created_at, updated_at, concurrency_limit, own_limit, rate_limit, weight,
     share)
  overriding system value
  select id, machine, version, step, queue, priority, due_at,
         case when due_at > stepwell.now() then 'due' end, tenant, key, key_scope, concurrency_key,
         parent_id, parent_round, child_index, stepwell.now(), stepwell.now(),
         e.needs::jsonb ->> 0, e.needs::jsonb ->> 1, e.needs::jsonb ->> 2, coalesce((e.needs::jsonb ->> 3)::integer, 1),
         case when queue = any (array(select q.name from stepwell.queues q where q.fair_by is not null))
              then hashtextextended(tenant, 0) end
  from entries e
  where e.key is null
     or not exists (select from stepwell.tombstones t
                    where t.tenant = e.tenant and t.key = e.key
                    offset 0)
  order by e.tenant collate "C", e.key collate "C", e.position
  on conflict (tenant, key) where key is not null and (key_scope = 'forever' or finished_at is null) do nothing
  returning id
), stored as (
  insert into stepwell.instance_data (id, state, unchecked)
  select e.id, e.state::jsonb, coalesce(e.unchecked, false)
  from entries e
  where e.key is null or e.id in (select id from inserted)
)
select (e.position - 1)::integer as position, e.id, e.queue, e.due_at > stepwell.now() as later
from entries e
where e.key is null or e.id in (select id from inserted)
order by e.position
