-- Start continuations that are missing; there should be none. Run after the instances that asked were locked.
-- Keeps: as interactions/complete.sql; only at waiting units without open interactions and without living
--   continuations.
-- Index: the primary keys, interactions_item, instances_parent, instances_continuing.
-- Locks: none.
-- Returns: unit and queue of each.
with units as materialized (
  select u.id, u.instance_id, u.item_step
  from {schema}.await_units u
  where u.id = any ($1::bigint[]) and u.status || '' = 'waiting' and u.is_filled and u.item_step is not null
    and not exists (select from {schema}.interactions q
                    where q.unit_id = u.id and q.status in ('queued', 'waiting', 'dispatching', 'dispatched')
                    offset 0)
    and not exists (select from {schema}.instances c
                    where c.continues_unit_id = u.id and c.status not in ('done', 'failed', 'cancelled')
                    offset 0)
), missing as materialized (
  select u.id as unit_id, u.item_step, q.item, q.reply, p.id as parent_id, p.tenant, p.machine, p.version, p.queue,
         p.priority, nextval('{schema}.instances_id_seq') as id
  from units u
  join {schema}.instances p on p.id = any (array[u.instance_id])
  join {schema}.interactions q on q.unit_id = any (array[u.id]) and q.status || '' = 'completed'
  where not exists (select from {schema}.instances c
                    where c.parent_id = u.instance_id and c.parent_round is null and c.child_index = q.item
                      and c.continues_unit_id = u.id
                    offset 0)
), started as (
  insert into {schema}.instances
    (id, machine, version, step, queue, priority, due_at, tenant, parent_id, child_index, continues_unit_id, created_at,
     updated_at, share)
  overriding system value
  select m.id, m.machine, m.version, m.item_step, m.queue, m.priority, {schema}.now(), m.tenant, m.parent_id, m.item,
         m.unit_id, {schema}.now(), {schema}.now(),
         case when m.queue = any (array(select f.name from {schema}.queues f where f.fair_by is not null))
              then hashtextextended(m.tenant, 0) end
  from missing m
), stored as (
  insert into {schema}.instance_data (id, state)
  select m.id, jsonb_build_object('item', m.item, 'value', m.reply)
  from missing m
)
select m.unit_id, m.queue from missing m
