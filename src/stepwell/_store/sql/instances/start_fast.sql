-- Insert new instances without keys that differ only in their states: a uniform batch, in one list instead of sixteen,
-- as one text with separators. Children: children/start_fast.sql. $11: their limit requirement, as in
-- instances/commit.sql; nearly always null.
-- Keeps: all are inserted; ids grow in the order of the list. An empty state is not stored: the caller copies it, in
--   the same transaction (_store/operations/start.py).
-- Index: queues_fair, once.
-- Locks: none but the new rows; waits for no lock.
-- Returns: one row: the ids in the order of the list, and whether they wait for their due time.
with entries as materialized (
  select nextval('{schema}.instances_id_seq') as id, e.state
  from unnest(string_to_array($1::text, E'\x1e')) as e(state)
), alike as materialized (
  select coalesce($8::timestamptz, {schema}.now() + $7::interval, {schema}.now()) as due_at,
         (select hashtextextended($9::text, 0)
          from {schema}.queues q
          where q.name = $5::text and q.fair_by is not null) as share,
         n.needs ->> 0 as concurrency_limit, n.needs ->> 1 as own_limit, n.needs ->> 2 as rate_limit,
         coalesce((n.needs ->> 3)::integer, 1) as weight
  from (select $11::text::jsonb as needs) n
), inserted as (
  insert into {schema}.instances
    (id, machine, version, step, queue, priority, due_at, hold, tenant, concurrency_key, created_at, updated_at,
     concurrency_limit, own_limit, rate_limit, weight, share)
  overriding system value
  select e.id, $2::text, $3::integer, $4::text, $5::text, $6::smallint, a.due_at,
         case when a.due_at > {schema}.now() then 'due' end, $9::text, $10::text, {schema}.now(), {schema}.now(),
         a.concurrency_limit, a.own_limit, a.rate_limit, a.weight, a.share
  from alike a, entries e
), stored as (
  insert into {schema}.instance_data (id, state)
  select e.id, e.state::jsonb
  from entries e
  where e.state <> ''
)
select array(select e.id from entries e order by e.id) as ids, a.due_at > {schema}.now() as later
from alike a
