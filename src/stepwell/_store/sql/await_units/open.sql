-- Open the units of committed outcomes that ask, with one interaction each, and store their reply types. Run in the
-- transaction of instances/commit.sql, on its result; they come as one JSON array of objects.
-- Keeps: one unit per park (await_units_visit); one interaction per item; one correlation per interaction
--   (interactions_correlation, made of the database's secret, the instance, its visit and the key, so it is the same
--   when the same is asked again). An interaction that no transport sends (`sends`) is out at once.
-- Index: the primary key of instances.
-- Locks: none but the new rows.
-- Returns: nothing.
with asked as materialized (
  select a.*, i.visit, i.tenant, i.machine, i.version,
         case when a.is_shared then '' else concat(i.id, ':', i.visit, ':0:') end || coalesce(a.fields, '') as key
  from json_to_recordset($1::json) as a(
         unit_id bigint, instance_id bigint, id uuid, step text, transport text, sends boolean, reply_type text,
         timeout interval, on_timeout text, requires_token boolean, assignee text, group_name text, request jsonb,
         fields text, is_shared boolean, max_items integer)
  join {schema}.instances i on i.id = any (array[a.instance_id])
), introduced as (
  insert into {schema}.reply_types (id, name, reference, schema)
  select t.id, t.name, t.reference::jsonb, t.schema::jsonb
  from unnest($2::text[], $3::text[], $4::text[], $5::text[]) as t(id, name, reference, schema)
  on conflict (id) do nothing
), opened as (
  insert into {schema}.await_units
    (id, instance_id, visit, tenant, machine, version, step, transport, is_sent, reply_type, timeout, on_timeout,
     requires_token, max_items, opened, in_flight, is_filled, created_at)
  overriding system value
  select a.unit_id, a.instance_id, a.visit, a.tenant, a.machine, a.version, a.step, a.transport, a.sends,
         a.reply_type, a.timeout, a.on_timeout, a.requires_token, a.max_items, 1, 1, true, {schema}.instant()
  from asked a
)
insert into {schema}.interactions
  (id, unit_id, instance_id, tenant, correlation, transport, status, idempotency_key, request, assignee, group_name,
   deadline, next_at, created_at)
select a.id, a.unit_id, a.instance_id, a.tenant,
       {schema}._correlation((select t.secret from {schema}.meta t where t.singleton), a.tenant, a.instance_id, a.visit,
                             0, a.key), a.transport,
       case when a.sends then 'waiting' else 'dispatched' end, a.key, coalesce(a.request, 'null'), a.assignee,
       a.group_name, {schema}.instant() + a.timeout, {schema}.instant(), {schema}.instant()
from asked a
