-- Append interactions, one per item, to a unit, and open it with the first. Run under await_units/hold.sql. $1: what
-- they share, as a JSON object, with the number of the `first` item; $2 to $4: ids, requests and key fields of the
-- items, in order; one item that is null: the source has ended before it.
-- Keeps: one interaction per item: items that the unit has already (an earlier attempt, a lost reply) are skipped; if
--   one differs, in its `idempotency` fields if there are any, nothing is appended. At most `window` of them are out,
--   as the unit was opened. It has room only if nothing is queued, so items go out in order; then their timeouts start.
-- Index: the primary keys, interactions_item.
-- Locks: the unit. (One that has ended gets nothing more.)
-- Returns: how many may be sent or are out; how the unit has ended, and the overdue interaction, if by that; how many
--   are new; the first item that differs: its number, and its stored and given request (null: none).
with unit as materialized (
  -- The unit as it is, or will be opened.
  select a.*, i.visit + 1 as visit, i.tenant, i.machine, i.version, coalesce(u.opened, 0) as before,
         coalesce(u.status, 'waiting') = 'waiting' as is_open, u.status,
         greatest(a.first + cardinality($2::uuid[]) - coalesce(u.opened, 0), 0) as number,
         coalesce(u."window", a."window") - coalesce(u.in_flight, 0) as space
  from json_to_record($1::json) as a(
         unit_id bigint, instance_id bigint, first integer, step text, transport text, sends boolean, reply_type text,
         timeout interval, on_timeout text, requires_token boolean, assignee text, group_name text, is_shared boolean,
         "window" integer, item_step text, type_name text, reference jsonb, schema jsonb, idempotency jsonb)
  join {schema}.instances i on i.id = any (array[a.instance_id])
  left join {schema}.await_units u on u.id = any (array[a.unit_id])
), differing as materialized (
  -- The first item with another request than the stored one.
  select q.item, v.asked, v.given
  from unit n
  cross join unnest($3::text[]) with ordinality as g(request, place)
  cross join lateral (
    select q.item, q.request
    from {schema}.interactions q
    where q.unit_id = n.unit_id and q.item = (n.first + g.place - 1)::integer
    offset 0
  ) q
  cross join lateral (
    select coalesce(jsonb_object_agg(f.name, q.request -> f.name), q.request) as asked,
           coalesce(jsonb_object_agg(f.name, g.request::jsonb -> f.name) filter (where g.request is not null),
                    g.request::jsonb) as given
    from jsonb_array_elements_text(n.idempotency) as f(name)
  ) v
  where n.is_open and n.first < n.before and v.asked is distinct from v.given
  order by q.item
  limit 1
), introduced as (
  insert into {schema}.reply_types (id, name, reference, schema)
  select n.reply_type, n.type_name, n.reference, n.schema
  from unit n
  on conflict (id) do nothing
), opened as (
  insert into {schema}.await_units as u
    (id, instance_id, visit, tenant, machine, version, step, transport, is_sent, reply_type, timeout, on_timeout,
     requires_token, "window", item_step, opened, in_flight, created_at)
  overriding system value
  select n.unit_id, n.instance_id, n.visit, n.tenant, n.machine, n.version, n.step, n.transport, n.sends,
         n.reply_type, n.timeout, n.on_timeout, n.requires_token, n."window", n.item_step, n.number,
         least(n.number, n.space), {schema}.instant()
  from unit n
  where n.is_open and n.number > 0 and not exists (select from differing)
  on conflict (id) do update set opened = u.opened + excluded.opened, in_flight = u.in_flight + excluded.in_flight
), items as materialized (
  -- The items that the unit does not have yet.
  select n.*, g.id, g.request, (n.first + g.place - 1)::integer as item,
         n.first + g.place - 1 < n.before + n.space as is_out,
         case when n.is_shared then '' else concat(n.instance_id, ':', n.visit, ':', n.first + g.place - 1, ':') end
           || coalesce(g.fields, '') as key
  from unit n
  cross join unnest($2::uuid[], $3::text[], $4::text[]) with ordinality as g(id, request, fields, place)
  where n.is_open and n.first + g.place - 1 >= n.before and not exists (select from differing)
), asked as (
  insert into {schema}.interactions
    (id, unit_id, instance_id, item, tenant, correlation, transport, status, idempotency_key, request, assignee,
     group_name, deadline, next_at, created_at)
  select m.id, m.unit_id, m.instance_id, m.item, m.tenant,
         {schema}._correlation((select t.secret from {schema}.meta t where t.singleton), m.tenant, m.instance_id,
                               m.visit, m.item, m.key), m.transport,
         case when not m.is_out then 'queued' when m.sends then 'waiting' else 'dispatched' end, m.key,
         m.request::jsonb, m.assignee, m.group_name, case when m.is_out then {schema}.instant() + m.timeout end,
         {schema}.instant(), {schema}.instant()
  from items m
)
select case when d.item is null then least(n.number, n.space) else 0 end as room,
       case when not n.is_open then n.status end as ended,
       (select q.id::text
        from {schema}.interactions q
        where not n.is_open and q.unit_id = n.unit_id and q.status = 'timed_out'
        order by q.item
        limit 1) as timed_out,
       case when n.is_open and d.item is null then n.number else 0 end as number,
       d.item as differs, d.asked::text as asked, d.given::text as given
from unit n
left join differing d on true
