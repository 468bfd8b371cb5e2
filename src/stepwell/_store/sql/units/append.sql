-- Append questions, one per item, to a unit that is being filled; open the unit with its first ones.
-- Run after units/hold.sql, in its transaction. $1: what they have in common, as one JSON object; $2 to $4: the ids,
--   requests and key fields of the items, in their order; `first` is the number of the first one.
-- Keeps: one interaction per item: those that the unit has (an answer was lost) are passed over. At most `window` of
--   them are out, as the unit was opened with it, whatever a later attempt says. The window has room only if nothing is
--   queued, so that items go out in their order. An item's time begins when it is let out. A unit that has ended before
--   it was full (its time was over, and it is to fail) gets nothing more.
-- Index: the primary keys, interactions_item. Locks: the unit.
-- Returns: how many may be sent, or are out; how the unit has ended, if it has; and the question whose time was over,
--   if it has ended by that.
with unit as materialized (
  select a.*, i.visit + 1 as visit, i.tenant, i.machine, i.version, coalesce(u.opened, 0) as before,
         coalesce(u.status, 'waiting') = 'waiting' as is_open, u.status,
         greatest(a.first + cardinality($2::uuid[]) - coalesce(u.opened, 0), 0) as number,
         coalesce(u."window", a."window") - coalesce(u.in_flight, 0) as space
  from json_to_record($1::json) as a(
         unit_id bigint, instance_id bigint, first integer, step text, transport text, sends boolean, reply_type text,
         timeout interval, on_timeout text, requires_token boolean, assignee text, group_name text, is_shared boolean,
         "window" integer, item_step text, type_name text, reference jsonb, schema jsonb)
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
     requires_token, "window", item_step, opened, in_flight, created_at)
  overriding system value
  select n.unit_id, n.instance_id, n.visit, n.tenant, n.machine, n.version, n.step, n.transport, n.sends,
         n.reply_type, n.timeout, n.on_timeout, n.requires_token, n."window", n.item_step, n.number,
         least(n.number, n.space), stepwell.now()
  from unit n
  where n.is_open
  on conflict (id) do update set opened = u.opened + excluded.opened, in_flight = u.in_flight + excluded.in_flight
), items as materialized (
  select n.*, g.id, g.request, (n.first + g.place - 1)::integer as item,
         n.first + g.place - 1 < n.before + n.space as is_out,
         case when n.is_shared then '' else concat(n.instance_id, ':', n.visit, ':', n.first + g.place - 1, ':') end
           || coalesce(g.fields, '') as key
  from unit n
  cross join unnest($2::uuid[], $3::text[], $4::text[]) with ordinality as g(id, request, fields, place)
  where n.is_open and n.first + g.place - 1 >= n.before
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
select least(n.number, n.space) as room, case when not n.is_open then n.status end as ended,
       case when not n.is_open then
         (select q.id::text
          from stepwell.interactions q
          where q.unit_id = n.unit_id and q.status = 'timed_out'
          order by q.item
          limit 1)
       end as timed_out
from unit n
