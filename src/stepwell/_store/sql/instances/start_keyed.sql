-- Insert new instances with keys, but for those whose key is occupied or buried, with their states.
-- Keeps: one live instance per key (instances_guard arbitrates, also within the batch); inserted in key order, so
--   that two batches with the same keys wait for each other in one direction only.
-- Index: instances_guard, tombstones. Locks: the new rows; waits for whoever is inserting the same key.
-- Returns: position, id, queue, and whether it waits for its due time; positions of duplicates are missing.
with entries as materialized (
  select e.*, nextval('stepwell.instances_id_seq') as id,
         coalesce(e.at, stepwell.now() + e.delay, stepwell.now()) as due_at
  from unnest($1::text[], $2::integer[], $3::text[], $4::text[], $5::smallint[], $6::interval[], $7::timestamptz[],
              $8::text[], $9::text[], $10::text[], $11::bigint[], $12::integer[], $13::integer[],
              $14::text[], $15::text[])
       with ordinality as e(machine, version, step, queue, priority, delay, at,
                            tenant, concurrency_key, state, parent_id, parent_round, child_index,
                            key, key_scope, position)
  order by e.position
), inserted as (
  insert into stepwell.instances
    (id, machine, version, step, queue, priority, due_at, hold, tenant, concurrency_key,
     parent_id, parent_round, child_index, key, key_scope, created_at, updated_at)
  overriding system value
  select id, machine, version, step, queue, priority, due_at,
         case when due_at > stepwell.now() then 'due' end, tenant, concurrency_key,
         parent_id, parent_round, child_index, key, key_scope, stepwell.now(), stepwell.now()
  from entries e
  where e.key is null
     or not exists (select from stepwell.tombstones t where t.tenant = e.tenant and t.key = e.key)
  order by e.tenant, e.key, e.position
  on conflict (tenant, guard) where guard is not null do nothing
  returning id, queue, hold
), stored as (
  insert into stepwell.instance_data (id, state)
  select e.id, e.state::jsonb
  from entries e join inserted i on i.id = e.id
)
select (e.position - 1)::integer as position, i.id, i.queue, i.hold is not null as later
from entries e join inserted i on i.id = e.id
order by e.position
