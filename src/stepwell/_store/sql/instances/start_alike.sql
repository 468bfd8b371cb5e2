-- Insert new instances that have no keys and differ in nothing but their states: what start.sql does, by one list
-- instead of sixteen. It comes as a text that is taken apart here (see commit_bare.sql). Children: spawns/start.sql.
-- A state that is empty is not stored: whoever sends it copies it, in the same transaction (_store/copies.py).
-- $11: what they need of limits, as in commit.sql; null nearly always.
-- Keeps: all are inserted; ids grow in the order of the list.
-- Index: queues_fair, once. Locks: none but the new rows; waits for nobody.
-- Returns: one row: the ids in the order of the list, and whether they wait for their due time.
with entries as materialized (
  select nextval('stepwell.instances_id_seq') as id, e.state
  from unnest(string_to_array($1::text, E'\x1e')) as e(state)
), alike as materialized (
  select coalesce($8::timestamptz, stepwell.now() + $7::interval, stepwell.now()) as due_at,
         (select hashtextextended($9::text, 0)
          from stepwell.queues q
          where q.name = $5::text and q.fair_by is not null) as share,
         n.needs ->> 0 as concurrency_limit, n.needs ->> 1 as own_limit, n.needs ->> 2 as rate_limit,
         coalesce((n.needs ->> 3)::integer, 1) as weight
  from (select $11::text::jsonb as needs) n
), inserted as (
  insert into stepwell.instances
    (id, machine, version, step, queue, priority, due_at, hold, tenant, concurrency_key, created_at, updated_at,
     concurrency_limit, own_limit, rate_limit, weight, share)
  overriding system value
  select e.id, $2::text, $3::integer, $4::text, $5::text, $6::smallint, a.due_at,
         case when a.due_at > stepwell.now() then 'due' end, $9::text, $10::text, stepwell.now(), stepwell.now(),
         a.concurrency_limit, a.own_limit, a.rate_limit, a.weight, a.share
  from alike a, entries e
), stored as (
  insert into stepwell.instance_data (id, state)
  select e.id, e.state::jsonb
  from entries e
  where e.state <> ''
)
select array(select e.id from entries e order by e.id) as ids, a.due_at > stepwell.now() as later
from alike a
