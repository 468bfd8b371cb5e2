-- Insert new instances that have no keys and differ in nothing but their states, and in their parents if they are
-- children: what start.sql does, by one list instead of sixteen. It comes as a text that is taken apart here (see
-- commit_bare.sql), and so do parents.
-- $14: what they need of limits, as in commit.sql; null nearly always.
-- Keeps: all are inserted, with their states; ids grow in the order of the list.
-- Index: queues_fair, once. Locks: none but the new rows; waits for nobody.
-- Returns: one row: the ids in the order of the list, and whether they wait for their due time.
with entries as materialized (
  select nextval('stepwell.instances_id_seq') as id, e.state, e.parent_id, e.parent_round, e.child_index
  from unnest(string_to_array($1::text, E'\x1e'), $2::text::bigint[], $3::text::integer[], $4::text::integer[])
       as e(state, parent_id, parent_round, child_index)
), alike as materialized (
  select coalesce($11::timestamptz, stepwell.now() + $10::interval, stepwell.now()) as due_at,
         (select hashtextextended($12::text, 0)
          from stepwell.queues q
          where q.name = $8::text and q.fair_by is not null) as share,
         n.needs ->> 0 as concurrency_limit, n.needs ->> 1 as own_limit, n.needs ->> 2 as rate_limit,
         coalesce((n.needs ->> 3)::integer, 1) as weight
  from (select $14::text::jsonb as needs) n
), inserted as (
  insert into stepwell.instances
    (id, machine, version, step, queue, priority, due_at, hold, tenant, concurrency_key,
     parent_id, parent_round, child_index, created_at, updated_at, concurrency_limit, own_limit, rate_limit, weight,
     share)
  overriding system value
  select e.id, $5::text, $6::integer, $7::text, $8::text, $9::smallint, a.due_at,
         case when a.due_at > stepwell.now() then 'due' end, $12::text, $13::text,
         e.parent_id, e.parent_round, e.child_index, stepwell.now(), stepwell.now(),
         a.concurrency_limit, a.own_limit, a.rate_limit, a.weight, a.share
  from alike a, entries e
), stored as (
  insert into stepwell.instance_data (id, state)
  select e.id, e.state::jsonb
  from entries e
)
select array(select e.id from entries e order by e.id) as ids, a.due_at > stepwell.now() as later
from alike a
