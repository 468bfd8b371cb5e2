-- Insert new instances without keys, in the order of the arrays, with their states.
-- Keeps: all or nothing. Index: none. Locks: none but the new rows.
-- Returns: position, id, queue, and whether it waits for its due time.
with entries as materialized (
  select e.*, nextval('stepwell.instances_id_seq') as id,
         coalesce(e.at, stepwell.now() + e.delay, stepwell.now()) as due_at
  from unnest($1::text[], $2::integer[], $3::text[], $4::text[], $5::smallint[], $6::interval[], $7::timestamptz[],
              $8::text[], $9::text[], $10::text[], $11::bigint[], $12::integer[], $13::integer[])
       with ordinality as e(machine, version, step, queue, priority, delay, at,
                            tenant, concurrency_key, state, parent_id, parent_round, child_index, position)
  order by e.position
), inserted as (
  insert into stepwell.instances
    (id, machine, version, step, queue, priority, due_at, hold, tenant, concurrency_key,
     parent_id, parent_round, child_index, created_at, updated_at)
  overriding system value
  select id, machine, version, step, queue, priority, due_at,
         case when due_at > stepwell.now() then 'due' end, tenant, concurrency_key,
         parent_id, parent_round, child_index, stepwell.now(), stepwell.now()
  from entries
), stored as (
  insert into stepwell.instance_data (id, state)
  select id, state::jsonb
  from entries
)
select (e.position - 1)::integer as position, e.id, e.queue, e.due_at > stepwell.now() as later
from entries e
