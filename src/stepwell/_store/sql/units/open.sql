-- Open the questions of asks that were just committed, one unit with one interaction each, and make their types known.
-- Run in the transaction of commit.sql, on what that returned. They come as one JSON array of objects.
-- Keeps: one unit per park (await_units_visit), one interaction per item, one address per question
--   (interactions_correlation, made of execution, visit and key: the same for the same question). What is not sent by
--   anybody (`sends`) is out at once.
-- Index: the primary key of instances. Locks: none but the new rows. Returns: nothing.
with asked as materialized (
  select a.*, i.visit, i.tenant, i.machine, i.version,
         case when a.is_shared then '' else concat(i.id, ':', i.visit, ':0:') end || coalesce(a.fields, '') as key
  from json_to_recordset($1::json) as a(
         unit_id bigint, instance_id bigint, id uuid, step text, transport text, sends boolean, reply_type text,
         timeout interval, on_timeout text, requires_token boolean, assignee text, group_name text, request jsonb,
         fields text, is_shared boolean, max_items integer)
  join stepwell.instances i on i.id = any (array[a.instance_id])
), introduced as (
  insert into stepwell.reply_types (id, name, reference, schema)
  select t.id, t.name, t.reference::jsonb, t.schema::jsonb
  from unnest($2::text[], $3::text[], $4::text[], $5::text[]) as t(id, name, reference, schema)
  on conflict (id) do nothing
), opened as (
  insert into stepwell.await_units
    (id, instance_id, visit, tenant, machine, version, step, transport, is_sent, reply_type, timeout, on_timeout,
     requires_token, max_items, opened, in_flight, is_filled, created_at)
  overriding system value
  select a.unit_id, a.instance_id, a.visit, a.tenant, a.machine, a.version, a.step, a.transport, a.sends,
         a.reply_type, a.timeout, a.on_timeout, a.requires_token, a.max_items, 1, 1, true, stepwell.now()
  from asked a
)
insert into stepwell.interactions
  (id, unit_id, instance_id, tenant, correlation, transport, status, idempotency_key, request, assignee, group_name,
   deadline, next_at, created_at)
select a.id, a.unit_id, a.instance_id, a.tenant,
       stepwell._correlation(a.tenant, a.instance_id, a.visit, 0, a.key), a.transport,
       case when a.sends then 'waiting' else 'dispatched' end, a.key, coalesce(a.request, 'null'), a.assignee,
       a.group_name, stepwell.now() + a.timeout, stepwell.now(), stepwell.now()
from asked a
