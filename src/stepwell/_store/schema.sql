-- The schema `stepwell` as all migrations together leave it, for reading. Generated; tests hold it equal to them:
--   .venv/bin/python -m tests.support.dump_schema > src/stepwell/_store/schema.sql
-- Why things are as they are stands in the migrations.

create schema stepwell;

CREATE OR REPLACE FUNCTION stepwell._array_problem(root jsonb, schema jsonb, value jsonb, INOUT budget integer, OUT place text, OUT problem text)
 RETURNS record
 LANGUAGE plpgsql
 STABLE
AS $function$
declare
  first constant jsonb := schema -> 'prefixItems';
  others constant jsonb := schema -> 'items';
  part record;
  judged record;
begin
  if jsonb_array_length(value) < (schema ->> 'minItems')::integer then
    problem := format('has %s items, at least %s are expected', jsonb_array_length(value), schema ->> 'minItems');
    return;
  elsif jsonb_array_length(value) > (schema ->> 'maxItems')::integer then
    problem := format('has %s items, at most %s are allowed', jsonb_array_length(value), schema ->> 'maxItems');
    return;
  elsif first is null and (others is null or others = 'true') then
    return;
  end if;
  for part in select a.value, a.place::integer - 1 as index
              from jsonb_array_elements(value) with ordinality a(value, place) loop
    judged := stepwell._schema_problem(root, coalesce(first -> part.index, others), part.value, budget);
    budget := judged.budget;
    if judged.problem is not null then
      place := right(format('[%s]%s', part.index, judged.place), 1000);
      problem := judged.problem;
      return;
    end if;
  end loop;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._await_units_close(bigint[])
 RETURNS TABLE(id bigint)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Close the open units of instances that have ended or continue elsewhere. Run after the instances were locked.
-- Keeps: a unit that has ended stays as it is; no interaction stays open (large units: as await_units/settle.sql).
-- Index: await_units_open, interactions_item.
-- Locks: units, then interactions.
-- Returns: the closed units that have continuations (await_units/drop_items.sql cancels them).
with closed as (
  update stepwell.await_units u
  set status = 'cancelled', finished_at = stepwell.now(), continuing = 0
  where u.instance_id = any ($1::bigint[]) and u.status = 'waiting'
  returning u.id, u.item_step, u.opened
), sized as materialized (
  -- Whether each is small enough to be closed here.
  select c.id, c.item_step,
         c.opened <= 1000
           and sum(c.opened) filter (where c.opened <= 1000) over (order by c.id) <= 5000 as is_small
  from closed c
), left_open as (
  insert into stepwell.cleanups (unit_id)
  select s.id from sized s where not s.is_small
  on conflict (unit_id) do nothing
  returning stepwell._notify('stepwell_cleanup', '')
), dropped as (
  update stepwell.interactions q
  set status = 'cancelled', finished_at = stepwell.now()
  where q.unit_id = any (array(select s.id from sized s where s.is_small))
    and q.status || '' in ('queued', 'waiting', 'dispatching', 'dispatched')
)
select s.id from sized s where s.is_small and s.item_step is not null;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._await_units_drop_items(bigint[])
 RETURNS TABLE(id bigint, concurrency_key text, concurrency_limit text, revoked text, settled text)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Cancel continuations of units that have ended, since nothing waits for them any more. Run after the instances that
-- asked were locked, so that no continuation is added.
-- Keeps: the fence grows, so that an outcome in flight is rejected. A row that another transaction holds right now (it
--   is being claimed, or is in a caller's transaction) is skipped: its end is counted nowhere.
-- Index: instances_continuing, driven from the units; the primary keys.
-- Locks: the rows, skip locked.
-- Returns: the cancelled rows, with what they held or waited for, so that the caller admits the next ones. Their
--   workers and waiting clients are notified with the commit, since that is rare.
with live as materialized (
  select l.id, l.was
  from unnest($1::bigint[]) as u(id)
  cross join lateral (
    select i.id, i.status as was
    from stepwell.instances i
    where i.continues_unit_id = u.id and i.status not in ('done', 'failed', 'cancelled')
    for no key update skip locked
  ) l
), cancelled as (
  update stepwell.instances i
  set status = 'cancelled', finished_at = stepwell.now(), updated_at = stepwell.now(), fence = i.fence + 1,
      dropped_fence = case when i.status = 'executing' then i.fence else i.dropped_fence end,
      worker_id = null, slot = null, hold = null, hold_reason = null, joined = true
  from live l
  where i.id = any (array[l.id])
  returning i.id, i.fence, i.watched, l.was = 'executing' as was_executing, i.concurrency_key, i.concurrency_limit
), stored as (
  update stepwell.instance_data d
  set error = jsonb_build_object('type', 'Cancelled', 'traceback', null, 'message',
                                 'no instance waits for it: the one that asked has ended, or continues elsewhere')
  from cancelled c
  where d.id = any (array[c.id])
)
select c.id, c.concurrency_key, c.concurrency_limit,
       case when c.was_executing then stepwell._notify('stepwell_revoked', c.id || ' ' || c.fence)::text end as revoked,
       case when c.watched then stepwell._notify('stepwell_settled', c.id::text)::text end as settled
from cancelled c;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._await_units_settle(bigint[], integer[], integer[], text[], boolean[], integer[], integer[])
 RETURNS TABLE(queues text[], transports text[], next_deadline double precision, dropped bigint[])
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Count resolved interactions at their units; end units that have nothing open or have timed out; send the next items
-- of a window; wake instances. $2: interactions that ended; $3: those of them that were out; $4: what ends a unit early
-- ('timed_out', 'failed'), if it has one interaction or is to fail; $5: its last item was appended; $6, $7:
-- continuations started and ended.
-- Keeps: the first end of a unit stands. A unit that ended early leaves nothing open (clean_up.sql closes units with
--   more than 1,000 interactions, or beyond 5,000 in all; no statement takes those for open). An instance wakes once,
--   only from its own unit, also if the unit ended before it parked. Continuations are counted while the unit waits;
--   one that fails ends the unit, and so does an interaction that cannot be sent, unless the unit continues without
--   missing replies. Run after another statement has locked the instances.
-- Index: the primary keys, interactions_queued, interactions_item. See docs/internals/sql-plans.md.
-- Locks: units, then interactions, then the instances (locked already).
-- Returns: one row: the queues of woken instances, the transports with something to send, the seconds to the first
--   deadline of what is sent, and units that ended early with continuations (await_units/drop_items.sql).
with given as materialized (
  -- The new counts and status of each unit.
  select g.unit_id, g.ended, g.is_filled, u.in_flight - g.returned as out,
         least(u."window" - (u.in_flight - g.returned),
               u.opened - u.resolved - g.resolved - (u.in_flight - g.returned)) as room,
         g.resolved, u.continuing + g.continues - g.continued as continuing,
         case
           when u.status <> 'waiting' then u.status
           when g.ended = 'timed_out' and (u."window" is null or u.on_timeout = 'fail') then 'timed_out'
           when g.ended = 'failed' and (u."window" is null or g.continued > 0
                                      or u.item_step is not null and u.on_timeout = 'fail') then 'failed'
           when (u.is_filled or g.is_filled) and u.resolved + g.resolved >= u.opened
             and u.continuing + g.continues - g.continued = 0 then 'completed'
           else 'waiting'
         end as status
  from unnest($1::bigint[], $2::integer[], $3::integer[], $4::text[], $5::boolean[], $6::integer[], $7::integer[])
       as g(unit_id, resolved, returned, ended, is_filled, continues, continued)
  join stepwell.await_units u on u.id = any (array[g.unit_id])
  where u.status || '' = 'waiting' or g.is_filled
  order by g.unit_id
), counted as (
  update stepwell.await_units u
  set resolved = u.resolved + g.resolved,
      in_flight = g.out + case when g.status = 'waiting' then coalesce(g.room, 0) else 0 end,
      is_filled = u.is_filled or g.is_filled,
      continuing = case when g.status = 'waiting' then g.continuing else 0 end,
      status = g.status,
      finished_at = case when g.status <> 'waiting' then coalesce(u.finished_at, stepwell.instant()) end
  from given g
  where u.id = any (array[g.unit_id]) and (u.status || '' = 'waiting' or g.is_filled)
  returning u.id, u.instance_id, u.status, u.is_sent, u.timeout, u.transport, u.item_step, u.opened,
            case when g.status = 'waiting' then g.room end as room
), closed as materialized (
  -- Units that ended early.
  select c.id, c.item_step, c.opened from counted c where c.status in ('timed_out', 'failed')
), sized as materialized (
  -- Whether each is small enough to be closed here.
  select c.id, c.item_step,
         c.opened <= 1000
           and sum(c.opened) filter (where c.opened <= 1000) over (order by c.id) <= 5000 as is_small
  from closed c
), left_open as (
  insert into stepwell.cleanups (unit_id)
  select s.id from sized s where not s.is_small
  on conflict (unit_id) do nothing
  returning stepwell._notify('stepwell_cleanup', '')
), dropped as (
  update stepwell.interactions q
  set status = 'cancelled', finished_at = stepwell.instant()
  where q.unit_id = any (array(select s.id from sized s where s.is_small))
    and q.status || '' in ('queued', 'waiting', 'dispatching', 'dispatched')
), next_ones as materialized (
  -- Queued interactions for which the window has room.
  select n.id, c.is_sent, c.timeout
  from counted c
  cross join lateral (
    select q.id
    from stepwell.interactions q
    where q.unit_id = c.id and q.status = 'queued'
    order by q.item
    limit c.room
  ) n
  where c.room > 0
), released as (
  update stepwell.interactions q
  set status = case when n.is_sent then 'waiting' else 'dispatched' end, deadline = stepwell.instant() + n.timeout,
      next_at = stepwell.instant()
  from next_ones n
  where q.id = any (array[n.id])
  returning case when n.is_sent then q.transport end as transport, n.timeout
), woken as (
  update stepwell.instances i
  set status = 'runnable', due_at = stepwell.instant(), updated_at = stepwell.instant()
  from counted c
  where i.id = any (array[c.instance_id]) and i.status || '' = 'awaiting_external' and i.await_unit_id = c.id
    and c.status <> 'waiting'
  returning i.queue
)
select array(select w.queue from woken w) as queues,
       array(select distinct r.transport from released r where r.transport is not null) as transports,
       (select extract(epoch from min(r.timeout))::float8 from released r) as next_deadline,
       array(select s.id from sized s where s.is_small and s.item_step is not null) as dropped;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._check_isolation()
 RETURNS void
 LANGUAGE plpgsql
AS $function$
begin
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    perform stepwell._refuse('SW005', 'connection', format(
      'its transaction is %s; start, signal and cancel need READ COMMITTED: use another transaction for them',
      upper(current_setting('transaction_isolation'))));
  end if;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._check_key_id(key_id text)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
begin
  if key_id is null or key_id !~ '^[A-Za-z0-9_-]{1,32}$' then
    perform stepwell._refuse(
      'SW001', 'key_id', 'is not of 1 to 32 letters, digits, ''_'' or ''-''; name the key as in token_keys');
  end if;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._check_shape(what text, given jsonb, fields jsonb)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
declare
  value constant jsonb := given #> '{}';  -- decompressed, as it may be stored compressed
  most constant integer := 10000;
  most_bytes constant integer := 4 * 33554432 + 1024;  -- in jsonb, where a value takes up to four times its text
  bad record;
begin
  if value is null or jsonb_typeof(value) <> 'array' then
    perform stepwell._refuse('SW001', what, 'expected an array of objects');
  elsif pg_column_size(value) > most_bytes then
    perform stepwell._refuse('SW004', what, format(
      '%s bytes are more than %s, the most of one call; send them in several calls',
      pg_column_size(value), most_bytes));
  elsif jsonb_array_length(value) > most then
    perform stepwell._refuse('SW004', what, format(
      '%s are more than %s, the most of one call; send them in several calls', jsonb_array_length(value), most));
  end if;
  select format('%s[%s]', what, e.place - 1) as entry, jsonb_typeof(e.entry) as type, f.key,
         jsonb_typeof(f.value) as got
  into bad
  from (select * from jsonb_array_elements(value) with ordinality as a(entry, place) order by a.place) e
  cross join lateral jsonb_each(case jsonb_typeof(e.entry) when 'object' then e.entry else '{"": 0}' end) f
  where not fields ? f.key or jsonb_typeof(f.value) not in (fields ->> f.key, 'null')
    or case when fields ->> f.key = 'number' and jsonb_typeof(f.value) = 'number'
            then abs(f.value::numeric) >= 1e20 or scale(f.value::numeric) > 100 end
  limit 1;
  if not found then
    return;
  elsif bad.type <> 'object' then
    perform stepwell._refuse('SW001', bad.entry, format('expected an object, got %s', bad.type));
  elsif not fields ? bad.key then
    perform stepwell._refuse('SW001', left(bad.key, 200), format(
      'is unknown (known: %s) (in %s)', (select string_agg(f, ', ' order by f) from jsonb_object_keys(fields) f),
      bad.entry));
  elsif fields ->> bad.key = bad.got then
    perform stepwell._refuse('SW001', bad.key, format('is a number of too many digits (in %s)', bad.entry));
  end if;
  perform stepwell._refuse('SW001', bad.key,
                           format('expected %s, got %s (in %s)', fields ->> bad.key, bad.got, bad.entry));
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._children_join(bigint[], integer[])
 RETURNS TABLE(id bigint, queue text)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Count ended children at their parents, and wake parents when their last child has ended.
-- Keeps: a child of an earlier round is not counted. Run in the transaction that ended the children, after
--   children/lock_parents.sql.
-- Index: the primary key.
-- Locks: the parents (locked already).
-- Returns: id and queue of the woken parents.
with ends as materialized (
  select e.parent_id, e.parent_round, count(*)::integer as number
  from unnest($1::bigint[], $2::integer[]) as e(parent_id, parent_round)
  group by e.parent_id, e.parent_round
), counted as (
  update stepwell.instances i
  set children_pending = greatest(i.children_pending - e.number, 0),
      status = case when i.status = 'awaiting_children' and i.children_pending <= e.number
                    then 'runnable' else i.status end,
      due_at = case when i.status = 'awaiting_children' and i.children_pending <= e.number
                    then stepwell.instant() else i.due_at end
  from ends e
  where i.id = any (array[e.parent_id]) and i.round = e.parent_round
  returning i.id, i.queue, i.status, i.hold, i.children_pending
)
select id, queue
from counted
where status = 'runnable' and hold is null and children_pending = 0;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._claim_slots(by_worker bigint, of_queue text, most integer, labels text[], passed_over text[])
 RETURNS TABLE(verdict text, id bigint, machine text, version integer, fence bigint, step text, attempt integer, crashes integer, tenant text, key text, claimed_at timestamp with time zone, has_inbox boolean, awaits text[], parent_id bigint, round integer, priority smallint, concurrency_limit text, own_limit text, weight integer, await_unit_id bigint)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
declare
  ids bigint[];
  names text[];
  is_plain boolean;
  moment timestamptz;
begin
  perform set_config('synchronous_commit', 'off', true);

  -- No row is locked while a limit is waited for: read without locks which limits are needed.
  select array_agg(distinct w.concurrency_limit), bool_and(w.is_plain)
  into names, is_plain
  from (
    select i.concurrency_limit,
           i.concurrency_limit is not null and i.rate_limit is null and i.concurrency_key is null
             and (i.machine || '@' || i.version) = any (labels) as is_plain
    from stepwell.instances i
    where i.queue = of_queue and i.status = 'runnable' and i.hold is null and i.share is null
      and (passed_over = '{}' or not (i.machine || '@' || i.version) = any (passed_over))
    order by i.priority, i.due_at, i.id
    limit most
  ) w;
  if is_plain is null then
    return;
  end if;
  if not stepwell._may_claim(of_queue) then
    return;
  end if;
  if is_plain then
    select bool_and(exists (select from stepwell.limits l where l.kind = 'concurrency' and l.name = d.name))
    into is_plain
    from (select distinct split_part(g.name, ':', 1) as name from unnest(names) as g(name)) d;
  end if;
  if not is_plain then
    verdict := 'mixed';
    return next;
    return;
  end if;
  perform stepwell._lock_limits(names);

  -- The head by now: rows may have been claimed or locked meanwhile. A row that needs anything else is missed.
  select array_agg(w.id) filter (where w.is_plain), array_agg(w.concurrency_limit) filter (where w.is_plain),
         bool_and(w.is_plain)
  into ids, names, is_plain
  from (
    select i.id, i.concurrency_limit,
           coalesce(i.concurrency_limit = any (names), false) and i.rate_limit is null and i.concurrency_key is null
             and (i.machine || '@' || i.version) = any (labels) as is_plain
    from stepwell.instances i
    where i.queue = of_queue and i.status = 'runnable' and i.hold is null and i.share is null
      and (passed_over = '{}' or not (i.machine || '@' || i.version) = any (passed_over))
    order by i.priority, i.due_at, i.id
    limit most
    for no key update skip locked
  ) w;
  if not is_plain then
    verdict := 'missed';
    return next;
  end if;

  moment := clock_timestamp();  -- the claim's time: the function may have waited long
  return query
  with gates as materialized (
    select w.name, array_agg(w.id order by w.place) as ids
    from unnest(ids, names) with ordinality as w(id, name, place)
    group by w.name
  ), chosen as materialized (
    select c.id, c.slot
    from gates g
    join stepwell.limits l on l.kind = 'concurrency' and l.name = any (array[split_part(g.name, ':', 1)])
    cross join lateral (
      select array(select e.slot
                   from stepwell.instances e
                   where e.concurrency_limit = g.name and e.status = 'executing' and e.slot is not null) as slots
      offset 0
    ) taken
    -- The lowest free numbers, as many as are free; other rows get null.
    cross join lateral unnest(g.ids, array(
      select s.slot
      from (select generate_series(1, least(l.n, cardinality(taken.slots) + cardinality(g.ids))) as slot
            except
            select unnest(taken.slots)) s
      order by s.slot
      limit greatest(least(l.n - cardinality(taken.slots), cardinality(g.ids)), 0)
    )) as c(id, slot)
  ), written as (
    update stepwell.instances i
    set status = case when c.slot is null then i.status else 'executing' end,
        slot = c.slot,
        worker_id = case when c.slot is not null then by_worker end,
        claimed_at = case when c.slot is not null then moment end,
        fence = i.fence + (c.slot is not null)::integer,
        hold = case when c.slot is null then 'limit' end,
        hold_reason = case when c.slot is not null then i.hold_reason end,
        updated_at = case when c.slot is null then i.updated_at else stepwell.now() end
    from chosen c
    where i.id = any (array[c.id])
    returning i.*
  )
  select case when w.slot is null then 'held' else 'claimed' end, w.id, w.machine, w.version, w.fence, w.step,
         w.attempt, w.crashes, w.tenant, w.key, w.claimed_at, w.has_inbox, w.awaits, w.parent_id, w.round, w.priority,
         w.concurrency_limit, w.own_limit, w.weight, w.await_unit_id
  from written w
  order by w.priority, w.due_at, w.id;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._complete_one(instance_id bigint, completion json)
 RETURNS TABLE(verdict text, problem text, status text, queues text[], transports text[], next_deadline double precision)
 LANGUAGE plpgsql
AS $function$
declare
  judged record;
  settled record;
begin
  perform from stepwell.instances i where i.id = _complete_one.instance_id for no key update skip locked;
  if not found and exists (select from stepwell.instances i where i.id = _complete_one.instance_id) then
    return;
  end if;
  select a.* into judged from stepwell._interactions_complete(_complete_one.completion) a;
  if not found then
    return;
  end if;
  queues := '{}';
  if judged.verdict = 'admitted' then
    select s.* into settled
    from stepwell._await_units_settle(array[judged.unit_id], array[1], array[judged.was_out::integer], array[null::text],
                                array[false], array[(judged.continues_in is not null)::integer], array[0]) s;
    queues := settled.queues || judged.continues_in;
    transports := settled.transports;
    next_deadline := settled.next_deadline;
  end if;
  verdict := judged.verdict;
  problem := judged.problem;
  status := judged.status;
  return next;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._correlation(secret bytea, tenant text, instance bigint, visit integer, item integer, key text)
 RETURNS uuid
 LANGUAGE sql
 STABLE PARALLEL SAFE
AS $function$
select encode(substr(sha256(secret || convert_to(concat_ws(E'\x1f', tenant, instance, visit, item, key), 'UTF8')), 1, 16), 'hex')::uuid
$function$;

CREATE OR REPLACE FUNCTION stepwell._instances_find_key(text, text)
 RETURNS TABLE(id bigint)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Resolve a key: the live holder, else the newest row that had it.
-- Index: one probe of instances_guard, then one of instances_key, however often the key was used.
-- Locks: none.
-- Returns: one row; its id is null if no row has the key.
select coalesce(
  (select i.id from stepwell.instances i
   where i.tenant = $1 and i.key = $2 and (i.key_scope = 'forever' or i.finished_at is null)),
  (select i.id from stepwell.instances i
   where i.tenant = $1 and i.key = $2 and i.key_scope is not null
   order by i.id desc
   limit 1)) as id;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._instances_find_key_holders(text[], text[])
 RETURNS TABLE("position" integer, id bigint)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Find what holds keys: the live instance, or the pruned one that left a tombstone.
-- Index: instances_guard, tombstones.
-- Locks: none.
-- Returns: position and id; a key that has become free meanwhile is missing.
select (k.position - 1)::integer as position, coalesce(i.id, t.instance_id) as id
from unnest($1::text[], $2::text[]) with ordinality as k(tenant, key, position)
left join stepwell.instances i
  on i.tenant = k.tenant and i.key = k.key and (i.key_scope = 'forever' or i.finished_at is null)
left join stepwell.tombstones t on t.tenant = k.tenant and t.key = k.key
where i.id is not null or t.instance_id is not null;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._instances_find_tombstoned(bigint[])
 RETURNS TABLE(id bigint)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Find, among keyed instances just inserted, those with a key that got a tombstone while the insert waited for the
-- deletion of its last holder. Run in the transaction of instances/start.sql, with a fresh snapshot.
-- Index: the primary key, driven from the ids; tombstones, one probe per row. See docs/internals/sql-plans.md.
-- Locks: none.
select i.id
from stepwell.instances i
where i.id = any ($1::bigint[])
  and exists (select from stepwell.tombstones t
              where t.tenant = i.tenant and t.key = i.key
              offset 0);
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._instances_start(text[], integer[], text[], text[], smallint[], interval[], timestamp with time zone[], text[], text[], text[], text[], text[], bigint[], integer[], integer[], boolean[], text[])
 RETURNS TABLE("position" integer, id bigint, queue text, later boolean)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Insert new instances, in the order of the arrays, with their states. $17: their limit requirements, as in
-- instances/commit.sql; nearly always null.
-- Keeps: an entry with a key that is held or has a tombstone is not inserted (its position is missing in the result).
--   Keys are inserted in their order, so that two batches with the same keys wait in one direction only. Times count
--   from the transaction, so that a batch of several statements has one; those of a child from the statement, because a
--   transactional step's transaction is as old as the step. In a fair queue each row has its share.
-- Index: instances_guard arbitrates keys; tombstones, one probe per key; queues_fair, once. Keys are looked up in a
--   hash, not joined: see docs/internals/sql-plans.md.
-- Locks: none but the new rows; waits for transactions that insert the same key.
-- Returns: position, id, queue, and whether it waits for its due time.
with entries as materialized (
  select e.*, m.moment, nextval('stepwell.instances_id_seq') as id,
         coalesce(e.at, m.moment + e.delay, m.moment) as due_at
  from unnest($1::text[], $2::integer[], $3::text[], $4::text[], $5::smallint[], $6::interval[], $7::timestamptz[],
              $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::bigint[], $14::integer[],
              $15::integer[], $16::boolean[], $17::text[])
       with ordinality as e(machine, version, step, queue, priority, delay, at,
                            tenant, key, key_scope, concurrency_key, state, parent_id, parent_round, child_index,
                            unchecked, needs, position),
       lateral (select case when e.parent_id is null then stepwell.now() else stepwell.instant() end) as m(moment)
  order by e.position
), inserted as (
  insert into stepwell.instances
    (id, machine, version, step, queue, priority, due_at, hold, tenant, key, key_scope, concurrency_key,
     parent_id, parent_round, child_index, created_at, updated_at, concurrency_limit, own_limit, rate_limit, weight,
     share)
  overriding system value
  select id, machine, version, step, queue, priority, due_at,
         case when due_at > moment then 'due' end, tenant, key, key_scope, concurrency_key,
         parent_id, parent_round, child_index, moment, moment,
         e.needs::jsonb ->> 0, e.needs::jsonb ->> 1, e.needs::jsonb ->> 2, coalesce((e.needs::jsonb ->> 3)::integer, 1),
         case when queue = any (array(select q.name from stepwell.queues q where q.fair_by is not null))
              then hashtextextended(tenant, 0) end
  from entries e
  where e.key is null
     or not exists (select from stepwell.tombstones t
                    where t.tenant = e.tenant and t.key = e.key
                    offset 0)
  order by e.tenant collate "C", e.key collate "C", e.position
  on conflict (tenant, key) where key is not null and (key_scope = 'forever' or finished_at is null) do nothing
  returning id
), stored as (
  insert into stepwell.instance_data (id, state, unchecked)
  select e.id, e.state::jsonb, coalesce(e.unchecked, false)
  from entries e
  where e.key is null or e.id in (select id from inserted)
)
select (e.position - 1)::integer as position, e.id, e.queue, e.due_at > e.moment as later
from entries e
where e.key is null or e.id in (select id from inserted)
order by e.position;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._instances_undo_start(bigint[])
 RETURNS void
 LANGUAGE plpgsql
AS $function$
begin
-- Delete instances that this very transaction has inserted.
-- Index: the primary keys.
-- Locks: these rows.
with gone as (
  delete from stepwell.instances i
  where i.id = any ($1::bigint[])
  returning i.id
)
delete from stepwell.instance_data d
using gone g
where d.id = any (array[g.id]);
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._interactions_complete(json)
 RETURNS TABLE("position" integer, verdict text, problem text, status text, unit_id bigint, was_out boolean, continues_in text)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Judge completions, and accept those that are valid: one JSON array, no interaction twice. Run after another statement
-- has locked their instances, so that nothing else ends these interactions meanwhile.
-- Keeps: the order of the checks: token, completed before, closed, late, type (with `max_items` of a list: a step gets
--   all of them at once). A refused completion changes nothing. A reply is checked only if nothing before refuses it: a
--   caller without a token costs nothing. `facts` is what was sent, if a projector made the reply; it tells a repeated
--   completion. `token` must fit the interaction; its signature was verified, or `seal` is its hash, one of those
--   stored. With an `item_step`, a reply starts a continuation (with item and reply as its state), which is counted at
--   the unit and at no parent.
-- Index: the primary keys; queues_fair, once; the retired keys, once, and only for a token.
-- Locks: the completed interactions.
-- Returns: per completion its position, the verdict, what is wrong with the reply, the status it found, whether the
--   interaction was out, and the queue of its continuation.
with met as materialized (
  -- Each completion with its interaction, and the verdict of token and status (an open interaction of an ended unit
  -- counts as closed).
  select g.position, g.id, coalesce(g.reply, 'null') as reply, g.facts, g.actor, g.is_checked, g.problem, q.unit_id,
         u.item_step, u.max_items, t.reference, t.schema,
         case when u.status <> 'waiting' and q.finished_at is null then 'cancelled' else q.status end as status,
         case
           when g.token is null and g.seal is null then case when u.requires_token then 'token' end
           when g.token_key = any (array(select r.key_id from stepwell.retired_token_keys r)) then 'retired'
           when g.token = jsonb_build_array(q.tenant, q.id::text, q.correlation::text, q.instance_id, u.step,
                                            floor(extract(epoch from q.deadline) * 1000)::bigint)
             and (g.seal is null or decode(g.seal, 'hex') = any (array_append(q.earlier_seals, q.seal))) then null
           else 'token'
         end as refusal,
         case
           when q.status = 'completed' and coalesce(q.facts, q.reply) = coalesce(g.facts, g.reply, 'null')
             then 'duplicate'
           when q.status = 'completed' then 'conflict'
           when q.status in ('timed_out', 'failed', 'cancelled') or u.status <> 'waiting' then 'closed'
           when q.deadline <= stepwell.now() then 'late'
         end as past
  from json_to_recordset($1::json) as g(
         position integer, id uuid, reply jsonb, facts jsonb, actor text, token jsonb, token_key text, seal text,
         is_checked boolean, problem text)
  join stepwell.interactions q on q.id = any (array[g.id])
  join stepwell.await_units u on u.id = any (array[q.unit_id])
  join stepwell.reply_types t on t.id = any (array[u.reply_type])
), judged as materialized (
  -- The same with what is wrong with the reply.
  select m.position, m.id, m.reply, m.facts, m.actor, m.unit_id, m.item_step, m.status, m.refusal, m.past,
         case
           when coalesce(m.refusal, m.past) is not null then null
           when case when jsonb_typeof(m.reply) = 'array' then jsonb_array_length(m.reply) > nullif(m.max_items, 0) end
             then format('reply: has %s items, one reply may have %s', jsonb_array_length(m.reply), m.max_items)
           when m.is_checked then m.problem
           when m.reference ->> 0 = 'projected' then
             format('projector: %s is not in the process that completes: do so where its pipeline is',
                    m.reference ->> 3)
           else stepwell._reply_problem(m.schema, m.reply)
         end as problem
  from met m
), admitted as (
  update stepwell.interactions q
  set status = 'completed', reply = j.reply, facts = j.facts, actor = j.actor, finished_at = stepwell.now(),
      error = null
  from judged j
  where q.id = any (array[j.id]) and coalesce(j.refusal, j.past, j.problem) is null
    and q.status || '' in ('queued', 'waiting', 'dispatching', 'dispatched')
  returning q.id, q.item, q.reply, q.unit_id, q.instance_id, j.item_step
), continuing as materialized (
  -- The continuations to start.
  select a.id as interaction_id, a.item, a.reply, a.unit_id, a.item_step, p.id as parent_id, p.tenant, p.machine,
         p.version, p.queue, p.priority, nextval('stepwell.instances_id_seq') as id
  from admitted a
  join stepwell.instances p on p.id = any (array[a.instance_id])
  where a.item_step is not null
), started as (
  insert into stepwell.instances
    (id, machine, version, step, queue, priority, due_at, tenant, parent_id, child_index, continues_unit_id, created_at,
     updated_at, share)
  overriding system value
  select c.id, c.machine, c.version, c.item_step, c.queue, c.priority, stepwell.now(), c.tenant, c.parent_id, c.item,
         c.unit_id, stepwell.now(), stepwell.now(),
         case when c.queue = any (array(select f.name from stepwell.queues f where f.fair_by is not null))
              then hashtextextended(c.tenant, 0) end
  from continuing c
), stored as (
  insert into stepwell.instance_data (id, state)
  select c.id, jsonb_build_object('item', c.item, 'value', c.reply)
  from continuing c
), queues as materialized (
  select jsonb_object_agg(c.interaction_id, c.queue) as by_interaction from continuing c
)
select j.position, coalesce(j.refusal, j.past, case when j.problem is null then 'admitted' else 'type' end) as verdict,
       j.problem, j.status, j.unit_id, j.status <> 'queued' as was_out,
       (select q.by_interaction from queues q) ->> j.id::text as continues_in
from judged j
order by j.position;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._interactions_find(uuid[], uuid[], text[])
 RETURNS TABLE("position" integer, id text, unit_id bigint, instance_id bigint, machine text, version integer, step text, reference text, request text, asked_at timestamp with time zone)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Find interactions, each by its id or its correlation, within a tenant, before anything is locked. If both are given,
-- both must fit.
-- Index: the primary key, interactions_correlation. See docs/internals/sql-plans.md.
-- Locks: none.
-- Returns: one row per interaction that exists: its position in the arrays, its ids, the instance and step that asked,
--   and the reply type; if a projector makes the reply, also the request and the current time.
select (g.place - 1)::integer as position, q.id::text as id, q.unit_id, q.instance_id, u.machine, u.version, u.step,
       t.reference::text as reference, case when t.reference ->> 0 = 'projected' then q.request::text end as request,
       case when t.reference ->> 0 = 'projected' then stepwell.now() end as asked_at
from unnest($1::uuid[], $2::uuid[], $3::text[]) with ordinality as g(id, correlation, tenant, place)
cross join lateral (
  select i.*
  from stepwell.interactions i
  where i.id = any (array[g.id]) and i.tenant || '' = g.tenant
    and (g.correlation is null or i.correlation = g.correlation)
  union all
  select i.* from stepwell.interactions i where g.id is null and i.tenant = g.tenant and i.correlation = g.correlation
) q
join stepwell.await_units u on u.id = any (array[q.unit_id])
join stepwell.reply_types t on t.id = any (array[u.reply_type])
order by g.place;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._let_go(keys text[], most integer[])
 RETURNS TABLE(queue text)
 LANGUAGE plpgsql
AS $function$
begin
  perform set_config('synchronous_commit', 'off', true);
  perform stepwell._lock_limits(keys);
  return query select f.queue from stepwell._limits_admit_waiting(keys, most, false) f;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._limit_name_problem(kind text, given text)
 RETURNS text
 LANGUAGE plpgsql
 STABLE
AS $function$
begin
  return case
    when not exists (select from stepwell.limits l
                     where l.kind = _limit_name_problem.kind and l.name = split_part(given, ':', 1))
      then format('this database knows no %s limit %L; declare it in Engine(limits=[…]) and run stepwell migrate',
                  kind, left(split_part(given, ':', 1), 200))
    when given like '%:' then 'has an empty part behind its '':'''
    when char_length(given) - strpos(given, ':') > 200 and strpos(given, ':') > 0
      then 'has a part of more than 200 characters'
  end;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._limit_problem(declared jsonb, concurrency_limit text, rate_limit text, weight numeric)
 RETURNS text[]
 LANGUAGE plpgsql
 STABLE
AS $function$
declare
  counted constant text := split_part(coalesce(rate_limit, declared ->> 1), ':', 1);
  problem text;
begin
  if concurrency_limit is not null then
    problem := stepwell._limit_name_problem('concurrency', concurrency_limit);
    if problem is not null then
      return array['SW001', 'concurrency_limit', problem];
    end if;
  end if;
  if rate_limit is not null then
    problem := stepwell._limit_name_problem('rate', rate_limit);
    if problem is not null then
      return array['SW001', 'rate_limit', problem];
    end if;
  end if;
  return case
    when weight is null then null
    when weight not between 1 and 1000000000 or weight % 1 <> 0 then array['SW001', 'weight', format(
      '%s is no whole number from 1 to 1000000000', left(weight::text, 20))]
    when counted is null then array['SW001', 'weight', 'counts against a rate_limit, and there is none']
    when weight > (select l.burst from stepwell.limits l where l.kind = 'rate' and l.name = counted)
      then array['SW001', 'weight', format('%s is above the burst of rate limit %L: it could never run', weight,
                                           counted)]
  end;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._limits_admit_waiting(text[], integer[], boolean)
 RETURNS TABLE(queue text)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Admit the most urgent rows behind each limit, up to its free slots and at most $2 (null: any number). Run under
-- limits/lock.sql, after the statement that freed the slots.
-- Keeps: nothing is admitted while the limit is full or not declared. Rows of queues that are claimed from come first:
--   the backlog of a paused or unserved queue blocks no other. With $3 the caller has freed no slot: rows admitted
--   before may not be claimed yet, some not for long, for want of a worker with free slots. Then each queue gets fewer
--   by as many as are already admitted among its first rows, and the first row of every served queue is admitted, so
--   that no queue waits for the workers of another.
-- Index: instances_slot; instances_limit_queue, one step per queue, and then only the rows to admit; the primary key;
--   with $3 up to 100 rows per queue of instances_claim and of instances_fair.
-- Locks: the rows, skip locked; what another transaction holds is left to concurrency_keys/find_idle.sql.
-- Returns: the queue of each admitted row.
with recursive room as materialized (
  -- Each limit with its free slots.
  select g.key, least(g.most, l.n - (select count(*)
                                     from stepwell.instances e
                                     where e.concurrency_limit = g.key and e.status = 'executing'
                                       and e.slot is not null))::integer as number
  from unnest($1::text[], $2::integer[]) as g(key, most)
  join stepwell.limits l on l.kind = 'concurrency' and l.name = any (array[split_part(g.key, ':', 1)])
), queues(key, number, queue) as (
  -- Before the first queue, then the queues in which rows wait, one index step each.
  select r.key, r.number, '' collate "C"
  from room r
  where r.number > 0
  union all
  select q.key, q.number, (select i.queue
                           from stepwell.instances i
                           where i.concurrency_limit = q.key and i.status = 'runnable' and i.hold = 'limit'
                             and i.hold_reason is null and i.queue > q.queue
                           order by i.queue
                           limit 1)
  from queues q
  where q.queue is not null
), offered as materialized (
  -- The first rows of each queue, served queues first.
  select n.id, q.number,
         row_number() over (partition by q.key order by s.is_served desc, n.priority, n.due_at, n.id) as place,
         s.is_served and row_number() over (partition by q.key, q.queue order by n.priority, n.due_at, n.id) = 1
           as is_first
  from queues q
  cross join lateral (
    select exists (select from stepwell.workers w where w.lease_until > pg_catalog.now() and w.queues ? q.queue)
           and not exists (select from stepwell.queues p where p.name = q.queue and p.paused_at is not null)
             as is_served,
           case when $3::boolean
                then (select count(*)
                      from ((select i.concurrency_limit
                             from stepwell.instances i
                             where i.queue = q.queue and i.status = 'runnable' and i.hold is null and i.share is null
                             order by i.priority, i.due_at, i.id
                             limit 100)
                            union all
                            (select i.concurrency_limit
                             from stepwell.instances i
                             where i.queue = q.queue and i.status = 'runnable' and i.hold is null
                               and i.share is not null
                             order by i.priority, i.share, i.due_at, i.id
                             limit 100)) f
                      where f.concurrency_limit = q.key)
                else 0 end as let_go
    offset 0
  ) s
  cross join lateral (
    select i.id, i.priority, i.due_at
    from stepwell.instances i
    where i.concurrency_limit = q.key and i.queue = q.queue and i.status = 'runnable' and i.hold = 'limit'
      and i.hold_reason is null
    order by i.priority, i.due_at, i.id
    limit greatest(q.number - s.let_go, 0)
  ) n
  where q.queue <> ''
), following as materialized (
  select i.id
  from offered o join stepwell.instances i on i.id = any (array[o.id])
  where (o.place <= o.number or $3 and o.is_first) and i.hold = 'limit' and i.status || '' = 'runnable'
  for no key update of i skip locked
)
update stepwell.instances i
set hold = null
from following f
where i.id = any (array[f.id])
returning i.queue;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._lock_key(space text, name text)
 RETURNS bigint
 LANGUAGE sql
 IMMUTABLE PARALLEL SAFE
AS $function$
  select case space
           when 'engine' then
             case name when 'machines' then 1::bigint when 'reaper' then 2::bigint when 'pruner' then 3::bigint
                       else name::bigint end  -- an error: a lock needs a row
           when 'key' then 4096 + (hashtextextended(name, 0) & 4095)
           when 'limit' then 8192 + (hashtextextended(name, 0) & 1023)
           when 'rate' then 12288 + (hashtextextended(name, 0) & 1023)
           else space::bigint
         end
$function$;

CREATE OR REPLACE FUNCTION stepwell._lock_limits(names text[])
 RETURNS void
 LANGUAGE plpgsql
AS $function$
begin
  perform from stepwell.locks l
  where l.number = any (array(select stepwell._lock_key('limit', g.name) from unnest(names) as g(name)))
  order by l.number
  for no key update;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._may_claim(queue text)
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
begin
  perform from stepwell.queues limit 0 for key share;
  return not exists (select from stepwell.queues q where q.name = queue and q.paused_at is not null);
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._name_problem(name text, may_be_empty boolean DEFAULT false)
 RETURNS text
 LANGUAGE sql
 STABLE PARALLEL SAFE
AS $function$
select case
  when name = '' and not may_be_empty then 'is empty; leave it out instead'
  when char_length(name) > 200 then format('has %s characters, 200 are allowed', char_length(name))
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._needs(declared jsonb, concurrency_limit text, rate_limit text, weight numeric)
 RETURNS text
 LANGUAGE sql
 STABLE
AS $function$
select case
  when coalesce(concurrency_limit, rate_limit, declared ->> 0, declared ->> 1) is not null
    then jsonb_build_array(coalesce(declared ->> 0, concurrency_limit), concurrency_limit,
                           coalesce(rate_limit, declared ->> 1),
                           coalesce(weight::integer, case when rate_limit is null then (declared ->> 2)::integer end, 1)
                          )::text
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._notify(channel text, payload text)
 RETURNS void
 LANGUAGE sql
RETURN CASE WHEN (pg_notification_queue_usage() < (0.5)::double precision) THEN pg_notify(channel, payload) ELSE NULL::void END;

CREATE OR REPLACE FUNCTION stepwell._number_problem(schema jsonb, value numeric)
 RETURNS text
 LANGUAGE sql
 STABLE
AS $function$
select case
  when value < (schema ->> 'minimum')::numeric then format('expected at least %s', schema ->> 'minimum')
  when value > (schema ->> 'maximum')::numeric then format('expected at most %s', schema ->> 'maximum')
  when value <= (schema ->> 'exclusiveMinimum')::numeric
    then format('expected more than %s', schema ->> 'exclusiveMinimum')
  when value >= (schema ->> 'exclusiveMaximum')::numeric
    then format('expected less than %s', schema ->> 'exclusiveMaximum')
  when value % nullif((schema ->> 'multipleOf')::numeric, 0) <> 0
    then format('expected a multiple of %s', schema ->> 'multipleOf')
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._object_problem(root jsonb, schema jsonb, value jsonb, INOUT budget integer, OUT place text, OUT problem text)
 RETURNS record
 LANGUAGE plpgsql
 STABLE
AS $function$
declare
  properties constant jsonb := coalesce(schema -> 'properties', '{}');
  others constant jsonb := nullif(schema -> 'additionalProperties', 'true');
  part record;
  judged record;
begin
  if schema ? 'required' then
    budget := budget - 1 - jsonb_array_length(schema -> 'required') / 16;
    select format('required field %L is missing', r.name) into problem
    from jsonb_array_elements_text(schema -> 'required') r(name)
    where not value ? r.name
    limit 1;
  end if;
  if problem is not null or properties = '{}' and others is null then
    return;
  end if;
  for part in select e.key, e.value from jsonb_each(value) e loop
    if properties ? part.key then
      judged := stepwell._schema_problem(root, properties -> part.key, part.value, budget);
    elsif others is null then
      budget := budget - 1;
      continue;
    elsif others = 'false' then
      problem := format('field %L is unknown', left(part.key, 100));
      return;
    else
      judged := stepwell._schema_problem(root, others, part.value, budget);
    end if;
    budget := judged.budget;
    if judged.problem is not null then
      place := right('.' || left(part.key, 100) || coalesce(judged.place, ''), 1000);
      problem := judged.problem;
      return;
    end if;
  end loop;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._operators_cancel(bigint[], text, text)
 RETURNS TABLE(id bigint, fence bigint, watched boolean, was_executing boolean, joins bigint, parent_round integer, continues bigint, concurrency_limit text)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- End instances as cancelled. The fence grows, so that an outcome in flight is rejected. The inbox stays, closed.
-- Keeps: what the instance was doing (`operated`), for a retry. Only rows that have not ended change, and side rows
--   only of those. Run after operators/lock.sql.
-- Index: the primary key. See docs/internals/sql-plans.md.
-- Locks: the rows (locked already).
-- Returns: the cancelled rows: the fence, whether a client waits, whether it was executing, the parent at which its end
--   is counted, and the limit of which it held a slot or for which it waited.
with live as materialized (
  select i.id, i.joined as was_joined, i.status as was, i.deadline
  from stepwell.instances i
  where i.id = any ($1::bigint[]) and i.status || '' not in ('done', 'failed', 'cancelled')
), cancelled as (
  update stepwell.instances i
  set status = 'cancelled', finished_at = stepwell.now(), updated_at = stepwell.now(), fence = i.fence + 1,
      dropped_fence = case when i.status = 'executing' then i.fence else i.dropped_fence end,
      worker_id = null, slot = null, hold = null, hold_reason = null, deadline = null,
      visit = i.visit + (i.filling_unit_id is not null)::integer, filling_unit_id = null,
      joined = i.joined or i.parent_id is not null
  from live l
  where i.id = l.id
  returning i.id, i.fence, i.watched, l.was, l.deadline, l.was = 'executing' as was_executing,
            case when i.joined and not l.was_joined and i.continues_unit_id is null then i.parent_id end as joins,
            i.parent_round, case when i.joined and not l.was_joined then i.continues_unit_id end as continues,
            i.concurrency_limit
), stored as (
  update stepwell.instance_data d
  set error = $2::text::jsonb, operated = $3::text::jsonb
                                       || jsonb_build_object('at', stepwell.now(), 'was', c.was, 'deadline', c.deadline)
  from cancelled c
  where d.id = c.id
)
select id, fence, watched, was_executing, joins, parent_round, continues, concurrency_limit
from cancelled;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._operators_find_subtree(bigint, boolean)
 RETURNS TABLE(id bigint, concurrency_key text, parent_id bigint)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Find the rows that a cancel concerns and that have not ended: an instance, its continuations and, if $2, all below
-- it.
-- Keeps: only continuations that have not ended are read (a million may have ended); they have no children, and
--   children have a round. Those of a unit with more than 1,000 are left to await_units/clean_up.sql, which
--   await_units/close.sql asks for.
-- Index: the primary key, instances_parent, await_units_open, instances_continuing, by probes: a join with the tree on
--   its inner side is quadratic. See docs/internals/sql-plans.md.
-- Locks: none.
-- Returns: id, concurrency key and parent of each.
with recursive tree(id) as (
  select $1::bigint
  union all
  select c.id
  from tree t
  cross join lateral (
    select c.id from stepwell.instances c
    where c.parent_id = t.id and c.parent_round is not null
    offset 0
  ) c
  where $2::boolean
)
select i.id, i.concurrency_key, i.parent_id
from tree t
cross join lateral (
  select i.id, i.concurrency_key, i.parent_id
  from stepwell.instances i
  where i.id = t.id and i.status || '' not in ('done', 'failed', 'cancelled')
  offset 0
) i
union all
select i.id, i.concurrency_key, i.parent_id
from tree t
cross join lateral (
  select u.id
  from stepwell.await_units u
  where u.instance_id = t.id and u.status = 'waiting' and u.opened <= 1000
  offset 0
) u
cross join lateral (
  select i.id, i.concurrency_key, i.parent_id
  from stepwell.instances i
  where i.continues_unit_id = u.id and i.status not in ('done', 'failed', 'cancelled')
  offset 0
) i;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._operators_lock(bigint[])
 RETURNS TABLE(id bigint)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Lock instances, parents and children together, in id order.
-- Index: the primary key.
-- Locks: the rows, no key update; waits for other transactions.
-- Returns: the locked ids.
select i.id
from stepwell.instances i
where i.id = any ($1::bigint[])
order by i.id
for no key update;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._payload_problem(field text, sent jsonb, largest bigint)
 RETURNS text[]
 LANGUAGE plpgsql
 STABLE
AS $function$
declare
  value constant jsonb := sent #> '{}';  -- decompressed, as it may be stored compressed
  most constant bigint := largest / 8;
  third constant jsonb := '{"third": 0.3333333333333333333333333333333333333333}';
  written text;
  found bigint;
begin
  if value is null then
    return null;
  elsif pg_column_size(value) > 4 * largest + 1024 then
    return array['SW004', field, format(
      'more bytes than max_payload (%s); store a reference instead, or raise max_payload', largest)];
  elsif jsonb_typeof(value) = 'array' and jsonb_array_length(value) > most then
    return stepwell._too_many_values(field, jsonb_array_length(value) + 1, most);
  end if;
  if jsonb_path_exists(
    value, 'strict $.** ? (@.type() == "number") ? (@ >= 1e20 || @ <= -1e20 || @ < 1e-20 && @ > -1e-20
                           && (@ != 0 || (1 + @) / 3 > $third)).keyvalue()', third, silent => true) is null
  then
    found := 21 * jsonb_array_length(jsonb_path_query_array(
      value, 'strict $.** ? (@ >= 1e20 || @ <= -1e20 || @ < 1e-20 && @ > -1e-20 && @ != 0)'));
    if found <= largest then
      found := found + 180 * jsonb_array_length(jsonb_path_query_array(
        value, 'strict $.** ? (@ >= 1e200 || @ <= -1e200 || @ < 1e-200 && @ > -1e-200 && @ != 0)'));
    end if;
    if found > largest then
      return array['SW004', field, format(
        'at least %s bytes, as its numbers are written out, are more than max_payload (%s); store a reference instead, '
        'or raise max_payload', found, largest)];
    elsif jsonb_path_exists(
      value, 'strict $.** ? (@.type() == "number") ? (@ >= 1e1000 || @ <= -1e1000 || @ < 1e-1000 && @ > -1e-1000
                             && (@ != 0 || (1 + @) / 3 > $third)).keyvalue()', third, silent => true) is null
    then
      return array['SW001', field,
                   'has a number of more than 1000 digits, or a zero of more than 40; send it as a string'];
    elsif exists (
      select
      from jsonb_array_elements(jsonb_path_query_array(
        value, 'strict $.** ? (@ >= 1.7976931348623158e308 || @ <= -1.7976931348623158e308)')) as n(number)
      where n.number::text like '%.%')
    then
      return array['SW001', field, 'has a number with a fraction that is beyond every float; send it as a string'];
    end if;
  end if;

  written := value::text;
  if octet_length(written) > largest then
    return array['SW004', field, format(
      '%s bytes are more than max_payload (%s); store a reference instead, or raise max_payload',
      octet_length(written), largest)];
  elsif octet_length(written) > most
    and octet_length(written) - octet_length(replace(replace(replace(written, ',', ''), '[', ''), '{', '')) >= most
  then
    found := jsonb_array_length(jsonb_path_query_array(value, 'strict $.**.type()'));
    if found > most then
      return stepwell._too_many_values(field, found, most);
    end if;
  end if;
  if octet_length(written) > 1000
    and jsonb_path_exists(value, '$.**{500}.type() ? (@ == "object" || @ == "array")')
  then
    return array['SW001', field, 'is nested more than 500 deep'];
  end if;
  return null;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._read_time(written text)
 RETURNS timestamp with time zone
 LANGUAGE plpgsql
 STABLE
AS $function$
begin
  if written ~ ('^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?'
                '(Z|[+-][0-9]{2}(:?[0-9]{2})?)$') then
    return written::timestamptz;
  end if;
  return null;
exception when data_exception then
  return null;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._refuse(code text, field text, problem text)
 RETURNS void
 LANGUAGE plpgsql
AS $function$
begin
  raise exception using errcode = code, message = field || ': ' || problem, column = field;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._reply_problem(schema jsonb, reply jsonb)
 RETURNS text
 LANGUAGE plpgsql
 STABLE
AS $function$
declare
  most constant integer := 12000;
  most_work constant integer := 38000;  -- in the units of _schema_problem: 2 µs each
  root constant jsonb := schema #> '{}';  -- decompressed, as it may be stored compressed
  value constant jsonb := reply #> '{}';
  judged record;
begin
  if root = '{}' then
    return null;
  elsif octet_length(value::text) > most
    and jsonb_array_length(jsonb_path_query_array(value, 'strict $.**.type()')) > most
  then
    return format('reply: has more than %s values, too many to be checked in SQL; complete it where its type is known',
                  most);
  end if;
  judged := stepwell._schema_problem(root, root, value, most_work);
  return format('reply%s: ', judged.place) || judged.problem;
exception
  when statement_too_complex then  -- a type that contains itself, some hundred times
    return 'reply: is nested too deep to be checked in SQL; complete it where its type is known';
  when program_limit_exceeded then  -- many branches, or long texts
    return 'reply: takes too long to be checked in SQL; complete it where its type is known';
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._schema_problem(root jsonb, schema jsonb, value jsonb, INOUT budget integer, OUT place text, OUT problem text)
 RETURNS record
 LANGUAGE plpgsql
 STABLE
AS $function$
declare
  kind constant text := jsonb_typeof(value);
  allowed jsonb;
  branches jsonb[];
  branch jsonb;
  cost integer;
  judged record;
begin
  while schema ? '$ref' and budget > 0 loop
    schema := root #> string_to_array(ltrim(schema ->> '$ref', '#/'), '/');
    budget := budget - 1;
  end loop;
  budget := budget - coalesce(pg_column_size(schema), 0) / 4096 - case kind
    when 'object' then 3 + pg_column_size(value) / 2048
    when 'array' then 3 + pg_column_size(value) / 2048
    when 'string' then 1 + pg_column_size(value) / 512
    else 1 end;
  if budget < 0 then
    raise exception using errcode = 'program_limit_exceeded', message = 'reply: takes too long to be checked';
  elsif schema is null or schema = 'true' then
    return;
  elsif schema = 'false' then
    problem := 'is not allowed';
    return;
  end if;

  allowed := coalesce(schema -> 'anyOf', schema -> 'oneOf');
  if allowed is not null then
    if kind = 'object' and schema ? 'discriminator' then
      branch := schema -> 'discriminator' -> 'mapping' -> (value ->> (schema #>> '{discriminator,propertyName}'));
      branches := case when branch is not null then array[jsonb_build_object('$ref', branch)] end;
    end if;
    if branches is null then
      budget := budget - 1 - jsonb_array_length(allowed) / 4;
      branches := '{}';
      for place_of_branch in 0 .. jsonb_array_length(allowed) - 1 loop
        branch := allowed -> place_of_branch;
        if not branch ? 'type' or branch -> 'type' ? kind
          or kind = 'number' and (branch -> 'type' ? 'integer' or branch @> '{"format": "decimal"}')
        then
          branches := branches || branch;
        end if;
      end loop;
    end if;
    if kind = 'object' and cardinality(branches) > 1 then
      select coalesce(array_agg(b.one order by b.place) filter (where not exists (
               select from jsonb_each(b.schema -> 'properties') p
               where case when p.value ? 'enum' then not p.value -> 'enum' @> (_schema_problem.value -> p.key)
                          when p.value ? 'const' then p.value -> 'const' <> _schema_problem.value -> p.key end)), '{}'),
             6 + sum(2 + pg_column_size(b.schema) / 256)
      into branches, cost
      from (select a.value as one, a.place, case when a.value ? '$ref'
                     then root #> string_to_array(ltrim(a.value ->> '$ref', '#/'), '/') else a.value end as schema
            from unnest(branches) with ordinality a(value, place)
            offset 0) b;
      budget := budget - cost;
    end if;
    for place_of_branch in 1 .. greatest(cardinality(branches), 1) loop
      judged := stepwell._schema_problem(root, coalesce(branches[place_of_branch], allowed -> -1), value, budget);
      budget := judged.budget;
      exit when judged.problem is null;
      budget := budget - 1;
    end loop;
    if judged.problem is not null and jsonb_array_length(allowed) > 2 and cardinality(branches) <> 1 then
      problem := 'is none of what is allowed';
      return;
    elsif judged.problem is not null then
      place := judged.place;
      problem := judged.problem;
      return;
    end if;
  end if;
  for place_of_branch in 0 .. coalesce(jsonb_array_length(schema -> 'allOf'), 0) - 1 loop
    judged := stepwell._schema_problem(root, schema -> 'allOf' -> place_of_branch, value, budget);
    budget := judged.budget;
    if judged.problem is not null then
      place := judged.place;
      problem := judged.problem;
      return;
    end if;
  end loop;

  if schema ? 'const' and (schema -> 'const' <> value or (schema -> 'const')::text <> value::text) then
    problem := format('expected %s', schema -> 'const');
    return;
  elsif schema ? 'enum' then
    budget := budget - jsonb_array_length(schema -> 'enum') / 16;
    if not exists (select from jsonb_array_elements(schema -> 'enum') e
                   where e.value = _schema_problem.value and e.value::text = _schema_problem.value::text) then
      problem := format('expected one of %s', left(schema ->> 'enum', 200));
      return;
    end if;
  end if;
  if schema ? 'type' then
    allowed := schema -> 'type';
    if not (allowed ? kind or kind = 'number' and (allowed ? 'integer' and scale(value::numeric) = 0
                                                   or schema @> '{"format": "decimal"}')) then
      problem := format('expected %s, got %s', replace(btrim(allowed::text, '[]"'), '", "', ' or '), kind);
      return;
    elsif kind = 'number' and allowed ? 'number' and not allowed ? 'integer'
      and abs(value::numeric) >= 1.7976931348623158e308
    then
      problem := 'is beyond every float';
      return;
    end if;
  end if;

  case kind
    when 'object' then
      judged := stepwell._object_problem(root, schema, value, budget);
      budget := judged.budget;
      place := judged.place;
      problem := judged.problem;
    when 'array' then
      judged := stepwell._array_problem(root, schema, value, budget);
      budget := judged.budget;
      place := judged.place;
      problem := judged.problem;
    when 'string' then
      if schema ?| array['minLength', 'maxLength', 'format'] then
        budget := budget - 1;
        problem := stepwell._string_problem(schema, value #>> '{}');
        budget := budget - case when problem is null then 0 else 5 end;
      end if;
    when 'number' then
      if schema ?| array['minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum', 'multipleOf'] then
        budget := budget - 1;
        problem := stepwell._number_problem(schema, value::numeric);
      end if;
    else null;
  end case;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._signal(ids bigint[], tenants text[], keys text[], names text[], payloads text[], dedup_keys text[], notify boolean)
 RETURNS TABLE("position" integer, id bigint)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
declare
  positions integer[] := array(select generate_series(0, cardinality(names) - 1));
  orphans integer[];
  reached bigint[];
  ready text[];
  all_ready text[] := '{}';
begin
  for attempt in 1 .. 10 loop
    -- If a key's holder ended while its lock was waited for, the key may have a new one: those are tried once more.
    select array_agg(d.target order by d.position), array_agg(distinct d.queue) filter (where d.queue is not null),
           coalesce(array_agg(d.position + 1) filter (where d.target is null and d.resolved is not null), '{}')
    into reached, ready, orphans
    from stepwell._signals_deliver(ids, tenants, keys, names, payloads, dedup_keys) d;
    all_ready := all_ready || ready;
    orphans := array(select e.place from unnest(keys) with ordinality as e(key, place)
                     where e.key is not null and (e.place in (select unnest(orphans))) is true and attempt < 10);
    return query
      select positions[r.place], r.target
      from unnest(reached) with ordinality as r(target, place)
      where r.place not in (select unnest(orphans));
    exit when orphans = '{}';
    select array_agg(e.position), array_agg(e.id), array_agg(e.tenant), array_agg(e.key), array_agg(e.name),
           array_agg(e.payload), array_agg(e.dedup_key)
    into positions, ids, tenants, keys, names, payloads, dedup_keys
    from unnest(positions, ids, tenants, keys, names, payloads, dedup_keys)
         with ordinality as e(position, id, tenant, key, name, payload, dedup_key, place)
    where (e.place in (select unnest(orphans))) is true;
  end loop;

  if notify is not false then
    perform stepwell._notify('stepwell_work', q.queue) from (select distinct unnest(all_ready) as queue) q;
  end if;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._signal_problem(id numeric, key text, name text, dedup_key text, tenant text, payload jsonb, is_checked boolean, largest bigint)
 RETURNS text[]
 LANGUAGE sql
 STABLE
AS $function$
select case
  when (id is null) = (key is null) then array['SW001', 'id', 'give either the id or the key of the instance to signal']
  when id % 1 <> 0 then array['SW001', 'id', 'expected a whole number']
  when stepwell._name_problem(key) is not null then array['SW001', 'key', stepwell._name_problem(key)]
  when name is null then array['SW001', 'name', 'is missing; name the signal']
  when stepwell._name_problem(name) is not null then array['SW001', 'name', stepwell._name_problem(name)]
  when stepwell._name_problem(dedup_key) is not null
    then array['SW001', 'dedup_key', stepwell._name_problem(dedup_key)]
  when stepwell._name_problem(tenant, true) is not null
    then array['SW001', 'tenant', stepwell._name_problem(tenant, true)]
  else stepwell._payload_problem('payload', payload, largest)
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._signals_deliver(bigint[], text[], text[], text[], text[], text[])
 RETURNS TABLE("position" integer, target bigint, resolved bigint, queue text)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
begin
return query
-- Deliver signals: store each in its target's inbox, and wake the target if it awaits that name.
-- Keeps: the target is locked before it is judged, so that a target that ends meanwhile is not reached; the wake is
--   decided on the locked row, so that no park is missed; one effect per dedup key; an id with a tenant that is not its
--   own reaches no target (an id without a tenant reaches any).
-- Index: the primary key, instances_guard, signals_dedup. Targets and queues are looked up in a hash and in an object,
--   not joined: see docs/internals/sql-plans.md.
-- Locks: the targets by id; waits for other transactions.
-- Returns: one row per signal: its position; the target's id (null: no target); the id it was resolved to before the
--   lock (the key of an instance that ended meanwhile may have a new holder); and the queue of a target that may run.
with given as materialized (
  -- The signals, each with the id of its target.
  select (g.position - 1)::integer as position, g.name, g.payload, g.dedup_key,
         case when g.id is null then (select i.id from stepwell.instances i
                                      where i.tenant = g.tenant and i.key = g.key
                                        and (i.key_scope = 'forever' or i.finished_at is null))
              when g.tenant is null then g.id
              else (select i.id from stepwell.instances i
                    where i.id = any (array[g.id]) and i.tenant || '' = g.tenant) end as id
  from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
       with ordinality as g(id, tenant, key, name, payload, dedup_key, position)
), targets as materialized (
  -- The targets that live, locked.
  select i.id
  from stepwell.instances i
  where i.id = any (array(select g.id from given g)) and i.status not in ('done', 'failed', 'cancelled')
  order by i.id
  for no key update
), stored as (
  insert into stepwell.signals (instance_id, sent_at, name, dedup_key, payload)
  select g.id, stepwell.now(), g.name, g.dedup_key, g.payload::jsonb
  from given g
  where (g.id in (select t.id from targets t)) is true
  order by g.position
  on conflict (instance_id, dedup_key) where dedup_key is not null do nothing
  returning instance_id, name
), arrived as materialized (
  select s.instance_id, array_agg(s.name) as names
  from stored s
  group by s.instance_id
), reached as (
  -- Targets, woken if they await one of the names.
  update stepwell.instances i
  set has_inbox = true,
      status = case when i.status = 'awaiting_signal' and i.awaits && a.names then 'runnable' else i.status end,
      due_at = case when i.status = 'awaiting_signal' and i.awaits && a.names then stepwell.now() else i.due_at end,
      deadline = case when i.status = 'awaiting_signal' and i.awaits && a.names then null else i.deadline end
  from arrived a
  where i.id = any (array[a.instance_id])
  returning i.id, case when i.status = 'runnable' and i.hold is null then i.queue end as queue
), queues as materialized (
  select jsonb_object_agg(r.id, r.queue) as by_id from reached r
)
select g.position, case when g.id in (select t.id from targets t) then g.id end as target, g.id as resolved,
       (select q.by_id from queues q) ->> g.id::text as queue
from given g
order by g.position;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._start(machines text[], versions integer[], steps text[], queues text[], priorities smallint[], delays interval[], times timestamp with time zone[], tenants text[], keys text[], key_scopes text[], concurrency_keys text[], states text[], unchecked boolean[], needs text[], notify boolean)
 RETURNS TABLE("position" integer, id bigint, is_duplicate boolean)
 LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
declare
  positions integer[] := array(select generate_series(0, cardinality(machines) - 1));
  ids bigint[];
  places integer[];
  tombstoned bigint[];
  occupied integer[];
  ready text[];
  is_later boolean;
  all_ready text[] := '{}';
  has_later boolean := false;
begin
  for attempt in 1 .. 10 loop
    select coalesce(array_agg(s.id), '{}'), coalesce(array_agg(s.position + 1), '{}'),
           array_agg(distinct s.queue) filter (where not s.later), coalesce(bool_or(s.later), false)
    into ids, places, ready, is_later
    from stepwell._instances_start(machines, versions, steps, queues, priorities, delays, times, tenants, keys,
                                   key_scopes, concurrency_keys, states, '{}', '{}', '{}', unchecked, needs) s;
    all_ready := all_ready || ready;
    has_later := has_later or is_later;

    -- If the insert waited while a key's last holder was pruned, it did not see that key's tombstone.
    if array_remove(keys, null) <> '{}' then
      tombstoned := array(select b.id from stepwell._instances_find_tombstoned(ids) b);
      if tombstoned <> '{}' then
        perform stepwell._instances_undo_start(tombstoned);
        select coalesce(array_agg(s.id), '{}'), coalesce(array_agg(s.place), '{}')
        into ids, places
        from unnest(ids, places) as s(id, place)
        where s.id not in (select unnest(tombstoned));
      end if;
    end if;
    return query select positions[s.place], s.id, false from unnest(ids, places) as s(id, place);
    exit when cardinality(places) = cardinality(positions);

    -- The other keys are held, or were just now; those that are free by now are tried once more.
    places := array(select e.place from generate_series(1, cardinality(positions)) as e(place)
                    where e.place not in (select unnest(places)) order by e.place);
    select coalesce(array_agg(places[o.position + 1]), '{}'), coalesce(array_agg(o.id), '{}')
    into occupied, ids
    from stepwell._instances_find_key_holders(
      array(select e.tenant from unnest(tenants) with ordinality as e(tenant, place)
            where (e.place in (select unnest(places))) is true order by e.place),
      array(select e.key from unnest(keys) with ordinality as e(key, place)
            where (e.place in (select unnest(places))) is true order by e.place)) o;
    return query select positions[o.place], o.id, true from unnest(ids, occupied) as o(id, place);
    exit when cardinality(occupied) = cardinality(places);
    if attempt = 10 then
      raise exception using errcode = 'serialization_failure',
        message = 'keys were freed and taken by others at the same time; try the transaction again';
    end if;
    select array_agg(e.position), array_agg(e.machine), array_agg(e.version), array_agg(e.step), array_agg(e.queue),
           array_agg(e.priority), array_agg(e.delay), array_agg(e.at), array_agg(e.tenant), array_agg(e.key),
           array_agg(e.key_scope), array_agg(e.concurrency_key), array_agg(e.state), array_agg(e.unchecked),
           array_agg(e.needs)
    into positions, machines, versions, steps, queues, priorities, delays, times, tenants, keys, key_scopes,
         concurrency_keys, states, unchecked, needs
    from unnest(positions, machines, versions, steps, queues, priorities, delays, times, tenants, keys, key_scopes,
                concurrency_keys, states, unchecked, needs)
         with ordinality as e(position, machine, version, step, queue, priority, delay, at, tenant, key, key_scope,
                              concurrency_key, state, unchecked, needs, place)
    where (e.place in (select unnest(places))) is true and e.place not in (select unnest(occupied));
  end loop;

  if notify is not false then
    perform stepwell._notify('stepwell_work', q.queue) from (select distinct unnest(all_ready) as queue) q;
    if has_later then
      perform stepwell._notify('stepwell_due', '');
    end if;
  end if;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._start_problem(machine text, version numeric, step text, key text, key_scope text, queue text, priority numeric, delay numeric, written_at text, at timestamp with time zone, concurrency_key text, tenant text, state jsonb, is_checked boolean, known text, steps text[], largest bigint)
 RETURNS text[]
 LANGUAGE sql
 STABLE
AS $function$
select case
  when machine is null then array['SW001', 'machine', 'is missing; name the machine to start']
  when known is null then array['SW002', 'machine', format(
    '%L%s is not known to this database; run stepwell migrate --app …, or start a worker that has it',
    left(machine, 200), ' version ' || left(version::text, 20))]
  when step <> all (steps) then array['SW003', 'step', format(
    'machine %L has no step %L (it has: %s)', machine, left(step, 200), array_to_string(steps, ', '))]
  when stepwell._name_problem(key) is not null then array['SW001', 'key', stepwell._name_problem(key)]
  when key_scope not in ('live', 'forever') then array['SW001', 'key_scope', format(
    '%L is not allowed; it is ''live'', ''forever'' or null', left(key_scope, 200))]
  when stepwell._name_problem(queue) is not null then array['SW001', 'queue', stepwell._name_problem(queue)]
  when queue ~ '[[:cntrl:]]' then array['SW001', 'queue', 'has a character that does not print']
  when priority not between -32768 and 32767 or priority % 1 <> 0 then array['SW001', 'priority', format(
    '%s is no whole number from -32768 to 32767 (lower first)', left(priority::text, 20))]
  when delay is not null and written_at is not null then array['SW001', 'delay',
    'both delay and at are given; give one of them']
  when delay not between 0 and 36500 * 86400.0 then array['SW001', 'delay', format(
    '%s s is out of range (0 to 36500 days)', left(delay::text, 20))]
  when written_at is not null and (at >= '0001-01-01 00:00+00' and at < '9001-01-01 00:00+00') is not true
    then array['SW001', 'at', format(
    '%L is no time with a time zone up to the year 9000, like 2030-01-31T12:00:00Z', left(written_at, 50))]
  when stepwell._name_problem(concurrency_key) is not null
    then array['SW001', 'concurrency_key', stepwell._name_problem(concurrency_key)]
  when stepwell._name_problem(tenant, true) is not null
    then array['SW001', 'tenant', stepwell._name_problem(tenant, true)]
  when jsonb_typeof(state) not in ('object', 'null') then array['SW001', 'state', format(
    'expected an object, got %s', jsonb_typeof(state))]
  else stepwell._payload_problem('state', state, largest)
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._string_problem(schema jsonb, value text)
 RETURNS text
 LANGUAGE plpgsql
 STABLE
AS $function$
begin
  if char_length(value) < (schema ->> 'minLength')::integer then
    return format('has %s characters, at least %s are expected', char_length(value), schema ->> 'minLength');
  elsif char_length(value) > (schema ->> 'maxLength')::integer then
    return format('has %s characters, at most %s are allowed', char_length(value), schema ->> 'maxLength');
  end if;
  if schema ->> 'format' in ('date-time', 'date', 'uuid') and octet_length(value) > 100 then
    return format('expected %s', schema ->> 'format');
  end if;
  case schema ->> 'format'  -- Postgres reads more than ISO 8601, such as 'today'
    when 'date-time' then
      perform value::timestamptz;
      if value !~ '^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d' then
        return 'expected a date and time as ISO 8601 has it';
      end if;
    when 'date' then
      perform value::date;
      if value !~ '^\d{4}-\d\d-\d\d$' then
        return 'expected a date as ISO 8601 has it';
      end if;
    when 'uuid' then perform value::uuid;
    when 'decimal' then perform value::numeric;
    else null;
  end case;
  return null;
exception when data_exception then
  return format('expected %s', schema ->> 'format');
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._token_facts(token text)
 RETURNS jsonb
 LANGUAGE plpgsql
 IMMUTABLE
AS $function$
declare
  payload constant text := translate(split_part(token, '.', 3), '-_', '+/');
  facts jsonb;
begin
  facts := convert_from(decode(rpad(payload, (length(payload) + 3) / 4 * 4, '='), 'base64'), 'UTF8');
  return case
    when jsonb_path_query_array(facts, 'strict $[*].type()', silent => true) in (
           '["string", "string", "string", "number", "string", "number"]',
           '["string", "string", "string", "number", "string", "null"]')
      and (facts ->> 1)::uuid is not null and (facts -> 3)::bigint is not null
      and coalesce(nullif(facts -> 5, 'null')::bigint, 0) is not null
    then facts end;
exception when data_exception then
  return null;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell._too_many_values(field text, found bigint, most bigint)
 RETURNS text[]
 LANGUAGE sql
 IMMUTABLE
AS $function$
select array['SW004', field, format(
  '%s values are more than %s (max_payload / 8); store a reference instead, or raise max_payload', found, most)]
$function$;

CREATE OR REPLACE FUNCTION stepwell.cancel(id bigint DEFAULT NULL::bigint, key text DEFAULT NULL::text, reason text DEFAULT NULL::text, cascade boolean DEFAULT true, by text DEFAULT NULL::text, tenant text DEFAULT NULL::text, notify boolean DEFAULT true)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
declare
  was_cancelled constant boolean := stepwell.try_cancel(id, key, reason, cascade, by, tenant, notify);
begin
  if was_cancelled is null then
    perform stepwell._refuse('SW012', case when id is null then 'key' else 'id' end, format(
      'no instance with %s', coalesce('id ' || id, 'key ' || quote_literal(key))));
  end if;
  return was_cancelled;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.complete(reply jsonb, interaction uuid DEFAULT NULL::uuid, correlation uuid DEFAULT NULL::uuid, token text DEFAULT NULL::text, actor text DEFAULT NULL::text, tenant text DEFAULT ''::text, notify boolean DEFAULT true)
 RETURNS TABLE(interaction_id uuid, instance_id bigint, is_duplicate boolean)
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET jit TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
 SET enable_hashjoin TO 'off'
 SET enable_mergejoin TO 'off'
AS $function$
#variable_conflict use_column
declare
  given constant jsonb := coalesce(complete.reply, 'null');
  is_read boolean;
  seal constant text := encode(sha256(convert_to(complete.token, 'UTF8')), 'hex');
  signed constant jsonb := case when length(complete.token) <= 4096 then stepwell._token_facts(complete.token) end;
  signer constant text := split_part(complete.token, '.', 2);
  facts constant jsonb := case when complete.interaction is null and complete.correlation is null then signed end;
  asked record;
  problem text[];
  judged record;
  settled record;
begin
  perform stepwell._check_isolation();
  if complete.interaction is null and complete.correlation is null and complete.token is null then
    perform stepwell._refuse('SW001', 'interaction', 'name the interaction by its id, its correlation or its token');
  elsif complete.interaction is null and complete.correlation is null and facts is null then
    perform stepwell._refuse('SW022', 'token', 'is malformed; pass it on as it was issued');
  elsif stepwell._name_problem(complete.actor) is not null then
    perform stepwell._refuse('SW001', 'actor', stepwell._name_problem(complete.actor));
  elsif stepwell._name_problem(complete.tenant, true) is not null then
    perform stepwell._refuse('SW001', 'tenant', stepwell._name_problem(complete.tenant, true));
  end if;

  select f.id, f.instance_id into asked
  from stepwell._interactions_find(
    array[coalesce(complete.interaction, (facts ->> 1)::uuid)], array[complete.correlation],
    array[coalesce(nullif(complete.tenant, ''), facts ->> 0, '')]) f;
  if not found then
    perform stepwell._refuse('SW021', 'interaction', format(
      'there is no interaction %s of this tenant; it may have been pruned',
      coalesce(complete.interaction, complete.correlation, (facts ->> 1)::uuid)));
  end if;
  perform stepwell._operators_lock(array[asked.instance_id]);
  foreach is_read in array array[false, true] loop
    if is_read then
      problem := stepwell._payload_problem('reply', given, (select m.max_payload from stepwell.meta m));
    end if;
    if problem is not null then
      perform stepwell._refuse(problem[1], problem[2], problem[3]);
    end if;
    select a.verdict, a.problem, a.status, a.unit_id, a.was_out, a.continues_in into judged
    from stepwell._interactions_complete(json_build_array(json_build_object(
      'position', 0, 'id', asked.id, 'reply', case when is_read then given end, 'actor', complete.actor,
      'token', signed, 'token_key', signer, 'seal', seal, 'is_checked', not is_read,
      'problem', 'reply: was not read yet'))) a;
    exit when judged.verdict in ('token', 'retired', 'closed', 'late');
  end loop;

  case judged.verdict
    when 'token' then perform stepwell._refuse('SW022', 'token', case
      when complete.token is null then 'is required for this interaction'
      else 'is none that was issued for this interaction as it stands' end);
    when 'retired' then perform stepwell._refuse('SW022', 'token', format(
      'was signed with key %L, which is retired; issue a new one, under another key', signer));
    when 'conflict' then
      perform stepwell._refuse('SW023', 'reply', 'the interaction was completed before, with another one');
    when 'closed' then
      perform stepwell._refuse('SW024', 'interaction', format('is closed: %s', replace(judged.status, '_', ' ')));
    when 'late' then perform stepwell._refuse('SW025', 'interaction', 'its deadline has passed');
    when 'type' then perform stepwell._refuse('SW026', 'reply', judged.problem);
    when 'duplicate' then null;
    else
      select s.queues, s.transports, s.next_deadline into settled
      from stepwell._await_units_settle(array[judged.unit_id], array[1], array[judged.was_out::integer], array[null::text],
                                  array[false], array[(judged.continues_in is not null)::integer], array[0]) s;
      if complete.notify is not false then
        perform stepwell._notify('stepwell_work', q.queue)
        from unnest(settled.queues || judged.continues_in) q(queue)
        where q.queue is not null;
        perform stepwell._notify('stepwell_dispatch', t.transport) from unnest(settled.transports) t(transport);
        if settled.next_deadline is not null then
          perform stepwell._notify('stepwell_due', '');
        end if;
      end if;
  end case;
  return query select asked.id::uuid, asked.instance_id, judged.verdict = 'duplicate';
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.instant()
 RETURNS timestamp with time zone
 LANGUAGE sql
 STABLE PARALLEL SAFE
RETURN statement_timestamp();

CREATE OR REPLACE FUNCTION stepwell.now()
 RETURNS timestamp with time zone
 LANGUAGE sql
 STABLE PARALLEL SAFE
RETURN now();

CREATE OR REPLACE FUNCTION stepwell.reinstate_token_key(key_id text)
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
begin
  perform stepwell._check_key_id(reinstate_token_key.key_id);
  delete from stepwell.retired_token_keys r where r.key_id = reinstate_token_key.key_id;
  return found;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.retire_token_key(key_id text)
 RETURNS boolean
 LANGUAGE plpgsql
AS $function$
begin
  perform stepwell._check_key_id(retire_token_key.key_id);
  insert into stepwell.retired_token_keys values (retire_token_key.key_id) on conflict do nothing;
  return found;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.signal(name text, payload jsonb DEFAULT NULL::jsonb, id bigint DEFAULT NULL::bigint, key text DEFAULT NULL::text, dedup_key text DEFAULT NULL::text, tenant text DEFAULT NULL::text, notify boolean DEFAULT true)
 RETURNS bigint
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET jit TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
 SET enable_hashjoin TO 'off'
 SET enable_mergejoin TO 'off'
AS $function$
declare
  problem text[];
  reached bigint;
begin
  perform stepwell._check_isolation();
  problem := stepwell._signal_problem(id, key, name, dedup_key, tenant, payload, false,
                                      (select max_payload from stepwell.meta));
  if problem is not null then
    perform stepwell._refuse(problem[1], problem[2], problem[3]);
  end if;
  reached := (select s.id
              from stepwell._signal(
                array[signal.id], array[coalesce(signal.tenant, case when signal.id is null then '' end)],
                array[signal.key], array[signal.name], array[coalesce(signal.payload, 'null')::text],
                array[signal.dedup_key], signal.notify) s);
  if reached is null then
    perform stepwell._refuse('SW011', case when id is null then 'key' else 'id' end, format(
      'nobody to signal: no live instance with %s', coalesce('id ' || id, 'key ' || quote_literal(key))));
  end if;
  return reached;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.signal_many(signals jsonb, notify boolean DEFAULT true)
 RETURNS TABLE("position" integer, id bigint)
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET jit TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
 SET enable_hashjoin TO 'off'
 SET enable_mergejoin TO 'off'
AS $function$
#variable_conflict use_column
declare
  given record;
begin
  perform stepwell._check_isolation();
  perform stepwell._check_shape('signals', signals, '{"id": "number", "key": "string", "name": "string",
    "payload": null, "dedup_key": "string", "tenant": "string", "checked": "boolean"}');

  with sent as materialized (
    select r.*, coalesce(r.checked, false) as is_checked
    from rows from (jsonb_to_recordset(signals) as (
      id numeric, tenant text, key text, name text, payload jsonb, dedup_key text, checked boolean)
    ) with ordinality as r(id, tenant, key, name, payload, dedup_key, checked, place)
  ), bad as materialized (
    select c.place, p.problem
    from (select s.* from sent s order by s.place offset 0) c
    cross join lateral (
      select stepwell._signal_problem(c.id, c.key, c.name, c.dedup_key, c.tenant, c.payload, c.is_checked,
                                      (select max_payload from stepwell.meta)) as problem
      offset 0) p
    where p.problem is not null
    limit 1
  )
  select (select b.problem from bad b) as problem, (select b.place - 1 from bad b) as place,
         array_agg(case when c.id between 1 and 9223372036854775807 then c.id::bigint
                        when c.id is not null then 0 end) as id,
         array_agg(coalesce(c.tenant, case when c.id is null then '' end)) as tenant,
         array_agg(c.key) as key, array_agg(c.name) as name,
         array_agg(coalesce(c.payload, 'null')::text) as payload,
         array_agg(c.dedup_key) as dedup_key
  into given
  from (select s.* from sent s where not exists (select from bad) order by s.place) c;
  if given.problem is not null then
    perform stepwell._refuse(given.problem[1], given.problem[2], given.problem[3]
      || case when jsonb_array_length(signals) > 1 then format(' (in signals[%s])', given.place) else '' end);
  elsif given.name is not null then
    return query select * from stepwell._signal(
      given.id, given.tenant, given.key, given.name, given.payload, given.dedup_key, notify);
  end if;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.start(machine text, state jsonb DEFAULT '{}'::jsonb, key text DEFAULT NULL::text, key_scope text DEFAULT 'live'::text, if_exists text DEFAULT 'raise'::text, queue text DEFAULT NULL::text, priority integer DEFAULT 0, delay interval DEFAULT NULL::interval, at timestamp with time zone DEFAULT NULL::timestamp with time zone, step text DEFAULT NULL::text, concurrency_key text DEFAULT NULL::text, version integer DEFAULT NULL::integer, tenant text DEFAULT ''::text, notify boolean DEFAULT true, concurrency_limit text DEFAULT NULL::text, rate_limit text DEFAULT NULL::text, weight integer DEFAULT NULL::integer)
 RETURNS bigint
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET "TimeZone" TO 'UTC'
 SET jit TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
 SET enable_hashjoin TO 'off'
 SET enable_mergejoin TO 'off'
AS $function$
declare
  known record;
  problem text[];
  started record;
begin
  perform stepwell._check_isolation();
  if if_exists is null or if_exists not in ('raise', 'return') then
    perform stepwell._refuse('SW001', 'if_exists',
                             format('%L is neither ''raise'' nor ''return''', left(if_exists, 200)));
  end if;
  select m.name, m.version, m.initial, m.queue, m.steps, l.max_payload,
         m.limits -> coalesce(start.step, m.initial) as declared
  into known
  from stepwell.meta l
  left join stepwell.machines m
    on m.name = start.machine and case when start.version is null then m.active else m.version = start.version end;
  problem := coalesce(stepwell._start_problem(
    machine, version, step, key, key_scope, queue, priority, extract(epoch from delay), at::text, at, concurrency_key,
    tenant, state, false, known.name, known.steps, known.max_payload),
    stepwell._limit_problem(known.declared, concurrency_limit, rate_limit, weight));
  if problem is not null then
    perform stepwell._refuse(problem[1], problem[2], problem[3]);
  end if;
  select s.id, s.is_duplicate
  into started
  from stepwell._start(
    array[known.name], array[known.version], array[coalesce(step, known.initial)], array[coalesce(queue, known.queue)],
    array[coalesce(priority, 0)::smallint], array[delay], array[at], array[coalesce(tenant, '')],
    array[case when key_scope is not null then key end], array[case when key is not null then key_scope end],
    array[concurrency_key], array[case when state is null or state = 'null' then '{}' else state::text end],
    array[true], array[stepwell._needs(known.declared, concurrency_limit, rate_limit, weight)], notify) s;
  if started.is_duplicate and if_exists = 'raise' then
    raise exception using errcode = 'SW010', column = 'key', detail = started.id::text,
      message = format('key: %L is occupied by instance %s', key, started.id),
      hint = 'Signal or wait for that one, or pass if_exists => ''return''.';
  end if;
  return started.id;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.start_many(entries jsonb, notify boolean DEFAULT true)
 RETURNS TABLE("position" integer, id bigint, is_duplicate boolean)
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET jit TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
 SET enable_hashjoin TO 'off'
 SET enable_mergejoin TO 'off'
AS $function$
#variable_conflict use_column
declare
  may_vouch constant boolean := has_table_privilege(session_user, 'stepwell.instance_data', 'insert');
  given record;
begin
  perform stepwell._check_isolation();
  perform stepwell._check_shape('entries', entries, '{"machine": "string", "version": "number", "step": "string",
    "state": null, "key": "string", "key_scope": "string", "queue": "string", "priority": "number", "delay": "number",
    "at": "string", "concurrency_key": "string", "concurrency_limit": "string", "rate_limit": "string",
    "weight": "number", "tenant": "string", "checked": "boolean"}');

  with sent as materialized (
    select e.*, m.name as known, m.version as known_version, m.initial, m.queue as known_queue, m.steps, x.*
    from rows from (
      jsonb_array_elements(entries),
      jsonb_to_recordset(entries) as (
        machine text, version numeric, step text, key text, queue text, priority numeric, delay numeric, at text,
        concurrency_key text, concurrency_limit text, rate_limit text, weight numeric, tenant text, state jsonb,
        checked boolean)
    ) with ordinality as e(entry, machine, version, step, key, queue, priority, delay, written_at, concurrency_key,
                           concurrency_limit, rate_limit, weight, tenant, state, checked, place)
    left join stepwell.machines m
      on m.name = e.machine and case when e.version is null then m.active else m.version = e.version end
    cross join lateral (
      select case when e.written_at is not null then stepwell._read_time(e.written_at) end as at,
             case when e.entry ? 'key_scope' then e.entry ->> 'key_scope' else 'live' end as scope,
             coalesce(e.checked, false) and may_vouch as is_checked,
             m.limits -> coalesce(e.step, m.initial) as declared
      offset 0) x
  ), bad as materialized (
    select c.place, p.problem
    from (select s.* from sent s order by s.place offset 0) c
    cross join lateral (
      select coalesce(stepwell._start_problem(
               c.machine, c.version, c.step, c.key, c.scope, c.queue, c.priority, c.delay, c.written_at, c.at,
               c.concurrency_key, c.tenant, c.state, c.is_checked, c.known, c.steps,
               (select max_payload from stepwell.meta)),
             case when coalesce(c.concurrency_limit, c.rate_limit, c.weight::text) is not null then
               stepwell._limit_problem(c.declared, c.concurrency_limit, c.rate_limit, c.weight) end) as problem
      offset 0) p
    where p.problem is not null
    limit 1
  )
  select (select b.problem from bad b) as problem, (select b.place - 1 from bad b) as place,
         array_agg(c.known) as machine, array_agg(c.known_version) as version,
         array_agg(coalesce(c.step, c.initial)) as step,
         array_agg(coalesce(c.queue, c.known_queue)) as queue,
         array_agg(coalesce(c.priority, 0)::smallint) as priority,
         array_agg(make_interval(secs => c.delay::float8)) as delay,
         array_agg(c.at) as at, array_agg(coalesce(c.tenant, '')) as tenant,
         array_agg(case when c.scope is not null then c.key end) as key,
         array_agg(case when c.key is not null then c.scope end) as key_scope,
         array_agg(c.concurrency_key) as concurrency_key,
         array_agg(case when c.state is null or c.state = 'null' then '{}' else c.state::text end) as state,
         array_agg(not c.is_checked) as unchecked,
         array_agg(stepwell._needs(c.declared, c.concurrency_limit, c.rate_limit, c.weight)) as needs
  into given
  from (select s.* from sent s where not exists (select from bad) order by s.place) c;
  if given.problem is not null then
    perform stepwell._refuse(given.problem[1], given.problem[2], given.problem[3]
      || case when jsonb_array_length(entries) > 1 then format(' (in entries[%s])', given.place) else '' end);
  elsif given.machine is not null then
    return query select * from stepwell._start(
      given.machine, given.version, given.step, given.queue, given.priority, given.delay, given.at, given.tenant,
      given.key, given.key_scope, given.concurrency_key, given.state, given.unchecked, given.needs,
      notify);
  end if;
end
$function$;

CREATE OR REPLACE FUNCTION stepwell.try_cancel(id bigint DEFAULT NULL::bigint, key text DEFAULT NULL::text, reason text DEFAULT NULL::text, cascade boolean DEFAULT true, by text DEFAULT NULL::text, tenant text DEFAULT NULL::text, notify boolean DEFAULT true)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
 SET jit TO 'off'
 SET plan_cache_mode TO 'force_generic_plan'
 SET enable_seqscan TO 'off'
 SET enable_bitmapscan TO 'off'
 SET enable_hashjoin TO 'off'
 SET enable_mergejoin TO 'off'
AS $function$
declare
  root bigint;
  ended record;
  ids bigint[];
  parents bigint[];
  holders bigint[];
  joined_parents bigint[];
  rounds integer[];
  continued bigint[];
  unit bigint;
  settled record;
  queues text[] := '{}';
  is_cancelled boolean := false;
  frees_keys boolean := false;
  dropped bigint[];
  why constant text := coalesce(nullif(try_cancel.reason, ''), 'cancelled');
  tells constant boolean := try_cancel.notify is not false;
  error constant text := jsonb_build_object('type', 'Cancelled', 'message', why, 'traceback', null);
  note constant text := jsonb_build_object('act', 'cancel', 'by', try_cancel.by, 'reason', why);
begin
  perform stepwell._check_isolation();
  if (try_cancel.id is null) = (try_cancel.key is null) then
    perform stepwell._refuse('SW001', 'id', 'give either the id or the key of the instance to cancel');
  elsif try_cancel.cascade is null then
    perform stepwell._refuse('SW001', 'cascade', 'expected true or false, got null');
  elsif stepwell._name_problem(try_cancel.key) is not null then
    perform stepwell._refuse('SW001', 'key', stepwell._name_problem(try_cancel.key));
  elsif stepwell._name_problem(try_cancel.tenant, true) is not null then
    perform stepwell._refuse('SW001', 'tenant', stepwell._name_problem(try_cancel.tenant, true));
  elsif stepwell._name_problem(try_cancel.by, true) is not null then
    perform stepwell._refuse('SW001', 'by', stepwell._name_problem(try_cancel.by, true));
  elsif char_length(try_cancel.reason) > 10000 then  -- each cancelled instance stores it twice
    perform stepwell._refuse('SW001', 'reason', format(
      'has %s characters, 10000 are allowed', char_length(try_cancel.reason)));
  end if;
  root := coalesce(try_cancel.id, (select k.id
                               from stepwell._instances_find_key(coalesce(try_cancel.tenant, ''), try_cancel.key) k));
  select i.status in ('done', 'failed', 'cancelled') as already into ended
  from stepwell.instances i
  where i.id = root and (try_cancel.id is null or try_cancel.tenant is null or i.tenant || '' = try_cancel.tenant);
  if not found then
    return null;
  elsif ended.already then
    return false;
  end if;

  loop
    select array_agg(t.id), coalesce(array_agg(t.parent_id) filter (where t.parent_id is not null), '{}'),
           coalesce(array_agg(t.id) filter (where t.concurrency_key is not null), '{}')
    into ids, parents, holders
    from stepwell._operators_find_subtree(root, try_cancel.cascade) t;
    exit when ids is null;
    perform stepwell._operators_lock(ids || parents);
    joined_parents := '{}';
    rounds := '{}';
    continued := '{}';
    for ended in select * from stepwell._operators_cancel(ids, error, note) loop
      is_cancelled := is_cancelled or ended.id = root;
      if ended.continues is not null then
        continued := continued || ended.continues;
      end if;
      if ended.joins is not null then
        joined_parents := joined_parents || ended.joins;
        rounds := rounds || ended.parent_round;
      end if;
      frees_keys := frees_keys or (ended.was_executing and ended.id = any (holders))
                    or ended.concurrency_limit is not null;
      if tells and ended.was_executing then
        perform stepwell._notify('stepwell_revoked', ended.id || ' ' || ended.fence);
      end if;
      if tells and ended.watched then
        perform stepwell._notify('stepwell_settled', ended.id::text);
      end if;
    end loop;
    dropped := array(select c.id from stepwell._await_units_close(ids) c);
    foreach unit in array continued loop
      select s.queues, s.dropped into settled
      from stepwell._await_units_settle(array[unit], array[0], array[0], array['failed'], array[false], array[0], array[1]) s;
      queues := queues || settled.queues;
      dropped := dropped || settled.dropped;
    end loop;
    frees_keys := exists (select from stepwell._await_units_drop_items(dropped) d
                          where d.concurrency_key is not null or d.concurrency_limit is not null) or frees_keys;
    queues := queues || array(select j.queue from stepwell._children_join(joined_parents, rounds) j);
    exit when not try_cancel.cascade;
  end loop;

  if tells then
    perform stepwell._notify('stepwell_work', q.queue) from (select distinct unnest(queues) as queue) q;
    if frees_keys then
      perform stepwell._notify('stepwell_idle', '');
    end if;
  end if;
  return is_cancelled;
end
$function$;

create table stepwell.await_units (
  id              bigint generated always as identity not null,
  instance_id     bigint not null,
  created_at      timestamp with time zone not null,
  finished_at     timestamp with time zone,
  timeout         interval,
  visit           integer not null,
  version         integer not null,
  "window"        integer,
  opened          integer default 0 not null,
  resolved        integer default 0 not null,
  in_flight       integer default 0 not null,
  continuing      integer default 0 not null,
  max_items       integer default 10000 not null,
  is_filled       boolean default false not null,
  is_sent         boolean not null,
  requires_token  boolean not null,
  tenant          text collate "C" not null,
  machine         text collate "C" not null,
  step            text collate "C" not null,
  item_step       text collate "C",
  transport       text collate "C" not null,
  reply_type      text collate "C" not null,
  on_timeout      text collate "C" not null,
  status          text collate "C" default 'waiting'::text not null,
  constraint await_units_pkey PRIMARY KEY (id),
  constraint continuing_not_negative CHECK (continuing >= 0),
  constraint no_more_than_opened CHECK (in_flight >= 0 AND resolved >= 0 AND (in_flight + resolved) <= opened),
  constraint no_more_than_window CHECK (in_flight <= "window"),
  constraint on_timeout_known CHECK (on_timeout = ANY (ARRAY['wake'::text, 'fail'::text])),
  constraint only_ended_has_end CHECK ((status = 'waiting'::text) = (finished_at IS NULL)),
  constraint status_known CHECK (status = ANY (ARRAY['waiting'::text, 'completed'::text, 'timed_out'::text, 'failed'::text, 'cancelled'::text]))
) with (fillfactor=70, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0);
CREATE INDEX await_units_open ON stepwell.await_units USING btree (instance_id)
  WHERE (status = 'waiting'::text);
CREATE UNIQUE INDEX await_units_visit ON stepwell.await_units USING btree (instance_id, visit);

create table stepwell.buckets (
  key          text collate "C" not null,
  tokens       double precision not null,
  refilled_at  timestamp with time zone not null,
  next_at      timestamp with time zone,
  constraint buckets_pkey PRIMARY KEY (key),
  constraint tokens_not_negative CHECK (tokens >= 0::double precision)
) with (fillfactor=50, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0);
CREATE INDEX buckets_next ON stepwell.buckets USING btree (next_at)
  WHERE (next_at IS NOT NULL);

create table stepwell.cleanups (
  unit_id      bigint not null,
  is_deletion  boolean default false not null,
  next_item    integer default 0 not null,
  constraint cleanups_pkey PRIMARY KEY (unit_id)
);

create table stepwell.instance_data (
  id         bigint not null,
  state      jsonb not null,
  result     jsonb,
  error      jsonb,
  operated   jsonb,
  pause      jsonb,
  unchecked  boolean default false not null,
  constraint instance_data_pkey PRIMARY KEY (id)
) with (fillfactor=50, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0);

create table stepwell.instances (
  id                 bigint generated always as identity not null,
  fence              bigint default 0 not null,
  committed_fence    bigint,
  dropped_fence      bigint,
  worker_id          bigint,
  parent_id          bigint,
  await_unit_id      bigint,
  filling_unit_id    bigint,
  continues_unit_id  bigint,
  share              bigint,
  due_at             timestamp with time zone not null,
  claimed_at         timestamp with time zone,
  paused_at          timestamp with time zone,
  deadline           timestamp with time zone,
  created_at         timestamp with time zone not null,
  updated_at         timestamp with time zone not null,
  finished_at        timestamp with time zone,
  version            integer not null,
  attempt            integer default 0 not null,
  crashes            integer default 0 not null,
  visit              integer default 0 not null,
  round              integer default 0 not null,
  parent_round       integer,
  child_index        integer,
  children_pending   integer default 0 not null,
  weight             integer default 1 not null,
  slot               integer,
  priority           smallint default 0 not null,
  joined             boolean default false not null,
  watched            boolean default false not null,
  has_inbox          boolean default false not null,
  has_news           boolean,
  has_checkpoints    boolean,
  tenant             text collate "C" default ''::text not null,
  machine            text collate "C" not null,
  step               text collate "C" not null,
  status             text collate "C" default 'runnable'::text not null,
  hold               text collate "C",
  hold_reason        text,
  queue              text collate "C" not null,
  concurrency_key    text collate "C",
  concurrency_limit  text collate "C",
  own_limit          text collate "C",
  rate_limit         text collate "C",
  awaits             text[] collate "C",
  key                text collate "C",
  key_scope          text collate "C",
  constraint instances_pkey PRIMARY KEY (id),
  constraint awaiting_signal_has_names CHECK (status <> 'awaiting_signal'::text OR awaits IS NOT NULL),
  constraint children_not_negative CHECK (children_pending >= 0),
  constraint executing_has_worker CHECK ((status = 'executing'::text) = (worker_id IS NOT NULL)),
  constraint finished_has_end CHECK ((status = ANY (ARRAY['done'::text, 'failed'::text, 'cancelled'::text])) = (finished_at IS NOT NULL)),
  constraint hold_known CHECK (hold = ANY (ARRAY['due'::text, 'key'::text, 'limit'::text, 'rate'::text, 'version'::text, 'unfit'::text, 'paused'::text])),
  constraint key_has_scope CHECK ((key IS NULL) = (key_scope IS NULL) AND (key_scope = ANY (ARRAY['live'::text, 'forever'::text, 'pending'::text]))),
  constraint only_executing_has_slot CHECK (slot IS NULL OR status = 'executing'::text),
  constraint only_runnable_is_held CHECK (hold IS NULL OR status = 'runnable'::text),
  constraint status_known CHECK (status = ANY (ARRAY['runnable'::text, 'executing'::text, 'awaiting_signal'::text, 'awaiting_children'::text, 'awaiting_external'::text, 'done'::text, 'failed'::text, 'cancelled'::text]))
) with (fillfactor=50, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0, autovacuum_analyze_scale_factor=0.05);
CREATE INDEX instances_behind_key ON stepwell.instances USING btree (concurrency_key, priority, due_at, id)
  WHERE ((status = 'runnable'::text) AND (hold = 'key'::text));
CREATE INDEX instances_claim ON stepwell.instances USING btree (queue, priority, due_at, id)
  WHERE ((status = 'runnable'::text) AND (hold IS NULL) AND (share IS NULL));
CREATE UNIQUE INDEX instances_concurrency_key ON stepwell.instances USING btree (concurrency_key)
  WHERE ((status = 'executing'::text) AND (concurrency_key IS NOT NULL));
CREATE INDEX instances_continuing ON stepwell.instances USING btree (continues_unit_id)
  WHERE ((continues_unit_id IS NOT NULL) AND (status <> ALL (ARRAY['done'::text, 'failed'::text, 'cancelled'::text])));
CREATE INDEX instances_deadline ON stepwell.instances USING btree (deadline)
  WHERE (deadline IS NOT NULL);
CREATE INDEX instances_due ON stepwell.instances USING btree (due_at)
  WHERE ((status = 'runnable'::text) AND (hold = 'due'::text));
CREATE INDEX instances_executing ON stepwell.instances USING btree (worker_id)
  WHERE (status = 'executing'::text);
CREATE INDEX instances_external ON stepwell.instances USING btree (id)
  WHERE (status = 'awaiting_external'::text);
CREATE INDEX instances_fair ON stepwell.instances USING btree (queue, priority, share, due_at, id)
  WHERE ((status = 'runnable'::text) AND (hold IS NULL) AND (share IS NOT NULL));
CREATE INDEX instances_finished ON stepwell.instances USING btree (machine, finished_at, id)
  WHERE (status = ANY (ARRAY['done'::text, 'failed'::text, 'cancelled'::text]));
CREATE UNIQUE INDEX instances_guard ON stepwell.instances USING btree (tenant, key)
  WHERE ((key IS NOT NULL) AND ((key_scope = 'forever'::text) OR (finished_at IS NULL)));
CREATE INDEX instances_joining ON stepwell.instances USING btree (id)
  WHERE (status = 'awaiting_children'::text);
CREATE INDEX instances_key ON stepwell.instances USING btree (tenant, key, id)
  WHERE (key_scope IS NOT NULL);
CREATE INDEX instances_limit_queue ON stepwell.instances USING btree (concurrency_limit, queue, priority, due_at, id)
  WHERE ((status = 'runnable'::text) AND (hold = 'limit'::text) AND (hold_reason IS NULL));
CREATE INDEX instances_parent ON stepwell.instances USING btree (parent_id, parent_round, child_index)
  WHERE (parent_id IS NOT NULL);
CREATE INDEX instances_rate_queue ON stepwell.instances USING btree (rate_limit, queue, priority, due_at, id)
  WHERE ((status = 'runnable'::text) AND (hold = 'rate'::text) AND (hold_reason IS NULL));
CREATE UNIQUE INDEX instances_slot ON stepwell.instances USING btree (concurrency_limit, slot)
  WHERE ((status = 'executing'::text) AND (slot IS NOT NULL));
CREATE INDEX instances_unlimited ON stepwell.instances USING btree (hold, id)
  WHERE ((status = 'runnable'::text) AND (hold = ANY (ARRAY['limit'::text, 'rate'::text])) AND (hold_reason IS NOT NULL));
CREATE INDEX instances_unrunnable ON stepwell.instances USING btree (hold, machine, version)
  WHERE ((status = 'runnable'::text) AND (hold = ANY (ARRAY['version'::text, 'unfit'::text])));

create table stepwell.interactions (
  id               uuid not null,
  correlation      uuid not null,
  unit_id          bigint not null,
  instance_id      bigint not null,
  worker_id        bigint,
  created_at       timestamp with time zone not null,
  deadline         timestamp with time zone,
  next_at          timestamp with time zone not null,
  dispatched_at    timestamp with time zone,
  finished_at      timestamp with time zone,
  item             integer default 0 not null,
  attempts         integer default 0 not null,
  tenant           text collate "C" not null,
  transport        text collate "C" not null,
  status           text collate "C" not null,
  assignee         text collate "C",
  group_name       text collate "C",
  actor            text,
  idempotency_key  text not null,
  error            text,
  seal             bytea,
  earlier_seals    bytea[],
  request          jsonb not null,
  reply            jsonb,
  metadata         jsonb,
  facts            jsonb,
  constraint interactions_pkey PRIMARY KEY (id),
  constraint dispatching_has_worker CHECK (status <> 'dispatching'::text OR worker_id IS NOT NULL),
  constraint only_completed_has_reply CHECK ((status = 'completed'::text) = (reply IS NOT NULL)),
  constraint only_ended_has_end CHECK ((status = ANY (ARRAY['completed'::text, 'timed_out'::text, 'failed'::text, 'cancelled'::text])) = (finished_at IS NOT NULL)),
  constraint status_known CHECK (status = ANY (ARRAY['queued'::text, 'waiting'::text, 'dispatching'::text, 'dispatched'::text, 'completed'::text, 'timed_out'::text, 'failed'::text, 'cancelled'::text]))
) with (fillfactor=70, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0);
CREATE INDEX interactions_assignee ON stepwell.interactions USING btree (tenant, assignee, COALESCE(deadline, 'infinity'::timestamp with time zone), created_at, id)
  WHERE ((status = ANY (ARRAY['waiting'::text, 'dispatching'::text, 'dispatched'::text])) AND (assignee IS NOT NULL));
CREATE UNIQUE INDEX interactions_correlation ON stepwell.interactions USING btree (tenant, correlation);
CREATE INDEX interactions_deadline ON stepwell.interactions USING btree (deadline, id)
  WHERE ((status = ANY (ARRAY['waiting'::text, 'dispatching'::text, 'dispatched'::text])) AND (deadline IS NOT NULL));
CREATE INDEX interactions_dispatch ON stepwell.interactions USING btree (transport, next_at, unit_id, item)
  WHERE (status = 'waiting'::text);
CREATE INDEX interactions_dispatching ON stepwell.interactions USING btree (worker_id)
  WHERE (status = 'dispatching'::text);
CREATE INDEX interactions_group ON stepwell.interactions USING btree (tenant, group_name, COALESCE(deadline, 'infinity'::timestamp with time zone), created_at, id)
  WHERE ((status = ANY (ARRAY['waiting'::text, 'dispatching'::text, 'dispatched'::text])) AND (group_name IS NOT NULL));
CREATE UNIQUE INDEX interactions_item ON stepwell.interactions USING btree (unit_id, item);
CREATE INDEX interactions_pending ON stepwell.interactions USING btree (tenant, COALESCE(deadline, 'infinity'::timestamp with time zone), created_at, id)
  WHERE (status = ANY (ARRAY['waiting'::text, 'dispatching'::text, 'dispatched'::text]));
CREATE INDEX interactions_queued ON stepwell.interactions USING btree (unit_id, item)
  WHERE (status = 'queued'::text);

create table stepwell.limits (
  kind        text collate "C" not null,
  name        text collate "C" not null,
  n           integer not null,
  per         interval,
  burst       integer,
  declared    jsonb not null,
  version     integer default 1 not null,
  changed_at  timestamp with time zone default now() not null,
  changed_by  text,
  constraint limits_pkey PRIMARY KEY (kind, name),
  constraint kind_known CHECK (kind = ANY (ARRAY['concurrency'::text, 'rate'::text])),
  constraint numbers_make_sense CHECK (n >= 0 AND (kind = 'concurrency'::text OR n > 0 AND burst > 0) AND per > '00:00:00'::interval),
  constraint rate_has_bucket CHECK ((kind = 'rate'::text) = (per IS NOT NULL AND burst IS NOT NULL))
);

create table stepwell.locks (
  number  bigint not null,
  constraint locks_pkey PRIMARY KEY (number)
);

create table stepwell.machines (
  name        text collate "C" not null,
  version     integer not null,
  initial     text not null,
  queue       text not null,
  steps       text[] not null,
  active      boolean not null,
  updated_at  timestamp with time zone default now() not null,
  retention   interval default '1 day'::interval,
  limits      jsonb default '{}'::jsonb not null,
  shape       text,
  constraint machines_pkey PRIMARY KEY (name, version)
);
CREATE UNIQUE INDEX machines_active ON stepwell.machines USING btree (name)
  WHERE active;

create table stepwell.meta (
  singleton    boolean default true not null,
  version      integer not null,
  oldest_code  integer not null,
  migrated_at  timestamp with time zone default now() not null,
  max_payload  bigint default 1048576 not null,
  secret       bytea default decode(replace(((gen_random_uuid())::text || (gen_random_uuid())::text), '-'::text, ''::text), 'hex'::text) not null,
  client_role  text,
  constraint meta_pkey PRIMARY KEY (singleton),
  constraint meta_singleton_check CHECK (singleton)
);

create table stepwell.queues (
  name        text collate "C" not null,
  paused_at   timestamp with time zone,
  paused_by   text,
  reason      text,
  changed_at  timestamp with time zone not null,
  fair_by     text collate "C",
  constraint queues_pkey PRIMARY KEY (name),
  constraint fair_by_known CHECK (fair_by = 'tenant'::text),
  constraint pause_has_time CHECK (paused_at IS NOT NULL OR paused_by IS NULL AND reason IS NULL)
);
CREATE INDEX queues_fair ON stepwell.queues USING btree (name)
  WHERE (fair_by IS NOT NULL);

create table stepwell.reply_types (
  id         text collate "C" not null,
  name       text not null,
  reference  jsonb not null,
  schema     jsonb,
  constraint reply_types_pkey PRIMARY KEY (id)
);

create table stepwell.retired_token_keys (
  key_id      text collate "C" not null,
  retired_at  timestamp with time zone default now() not null,
  constraint retired_token_keys_pkey PRIMARY KEY (key_id)
);

create table stepwell.signals (
  id           bigint generated always as identity not null,
  instance_id  bigint not null,
  sent_at      timestamp with time zone not null,
  consumed     boolean default false not null,
  name         text collate "C" not null,
  dedup_key    text collate "C",
  payload      jsonb,
  constraint signals_pkey PRIMARY KEY (id)
) with (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=2000, autovacuum_vacuum_cost_delay=0);
CREATE UNIQUE INDEX signals_dedup ON stepwell.signals USING btree (instance_id, dedup_key)
  WHERE (dedup_key IS NOT NULL);
CREATE INDEX signals_inbox ON stepwell.signals USING btree (instance_id, id);

create table stepwell.tombstones (
  tenant       text collate "C" not null,
  key          text collate "C" not null,
  instance_id  bigint not null,
  buried_at    timestamp with time zone not null,
  constraint tombstones_pkey PRIMARY KEY (tenant, key)
);

create table stepwell.workers (
  id            bigint default ((((('x'::text || "left"((gen_random_uuid())::text, 8)) || "right"((gen_random_uuid())::text, 8)))::bit(64))::bigint & '9223372036854775807'::bigint) not null,
  host          text not null,
  boot          text not null,
  pid           integer not null,
  process       text not null,
  release       text not null,
  queues        jsonb not null,
  machines      text[] not null,
  started_at    timestamp with time zone default now() not null,
  beat_at       timestamp with time zone default now() not null,
  lease_until   timestamp with time zone not null,
  has_left      boolean default false not null,
  steady_since  timestamp with time zone default now() not null,
  begun_at      timestamp with time zone default '-infinity'::timestamp with time zone not null,
  waiting       bigint[] default '{}'::bigint[] not null,
  running       integer default 0 not null,
  constraint workers_pkey PRIMARY KEY (id)
) with (fillfactor=50, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=200);

insert into stepwell.meta (version, oldest_code) values (1, 1);

insert into stepwell.locks select generate_series(1, 3);

insert into stepwell.locks select generate_series(4096, 9215);

insert into stepwell.locks select generate_series(12288, 13311);
