-- Append questions, one per item, to a unit that is being filled; open the unit with its first ones.
-- Run after units/hold.sql, in its transaction. $1: what they have in common, as one JSON object; $2 to $4: the ids,
--   requests and key fields of the items, in their order.
-- Keeps: one interaction per item; at most `window` of them are out. The window has room only if nothing is queued,
--   so that items go out in their order. An item's time begins when it is let out.
-- Index: the primary keys. Locks: the unit. Returns: how many may be sent, or are out.
with unit as materialized (
  select a.*, i.visit + 1 as visit, i.tenant, i.machine, i.version,
         coalesce(u.opened, 0) as before, least(cardinality($2::uuid[]), a."window" - coalesce(u.in_flight, 0)) as room
  from json_to_record($1::json) as a(
         unit_id bigint, instance_id bigint, step text, transport text, sends boolean, reply_type text,
         timeout interval, on_timeout text, requires_token boolean, assignee text, group_name text, is_shared boolean,
         "window" integer, type_name text, reference jsonb, schema jsonb)
  join stepwell.instances i on i.id = any (array[a.instance_id])
  left join stepwell.await_units u on u.id = any (array[a.unit_id])
), introduced as (
  insert into stepwell.reply_types (id, name, reference, schema)
  select n.reply_type, n.type_name, n.reference, n.schema
  from unit n
  on conflict (id) do nothing
), opened as (
  insert into stepwell.await_units as u
    (id, instance_id, visit, tenant, machine, version, step, transport, is_sent, reply_type, timeout, on_timeout,
     requires_token, "window", opened, in_flight, created_at)
  overriding system value
  select n.unit_id, n.instance_id, n.visit, n.tenant, n.machine, n.version, n.step, n.transport, n.sends,
         n.reply_type, n.timeout, n.on_timeout, n.requires_token, n."window", cardinality($2::uuid[]), n.room,
         stepwell.now()
  from unit n
  on conflict (id) do update set opened = u.opened + excluded.opened, in_flight = u.in_flight + excluded.in_flight
), items as materialized (
  select n.*, g.id, g.request, (n.before + g.place - 1)::integer as item, g.place <= n.room as is_out,
         case when n.is_shared then '' else concat(n.instance_id, ':', n.visit, ':', n.before + g.place - 1, ':') end
           || coalesce(g.fields, '') as key
  from unit n
  cross join unnest($2::uuid[], $3::text[], $4::text[]) with ordinality as g(id, request, fields, place)
), asked as (
  insert into stepwell.interactions
    (id, unit_id, instance_id, item, tenant, correlation, transport, status, idempotency_key, request, assignee,
     group_name, deadline, next_at, created_at)
  select m.id, m.unit_id, m.instance_id, m.item, m.tenant,
         stepwell._correlation(m.tenant, m.instance_id, m.visit, m.item, m.key), m.transport,
         case when not m.is_out then 'queued' when m.sends then 'waiting' else 'dispatched' end, m.key,
         m.request::jsonb, m.assignee, m.group_name, case when m.is_out then stepwell.now() + m.timeout end,
         stepwell.now(), stepwell.now()
  from items m
)
select n.room from unit n
