-- Slots of concurrency limits are claimed, and lines let go, in one round trip each.

-- What sql/limits/lock.sql does.
create function stepwell._lock_limits(names text[])
returns void
language plpgsql as $$
begin
  perform pg_advisory_xact_lock(n.hash)
  from (select distinct hashtextextended('stepwell:limit:' || g.name, 0) as hash
        from unnest(names) as g(name)
        order by 1) n;
end
$$;

-- See sql/limits/claim.sql. Each statement has a snapshot of its own: what it looks at was committed before the locks
-- were there.
create function stepwell._claim_slots(
  by_worker bigint, of_queue text, most integer, labels text[], passed_over text[]
)
returns table (
  verdict text, id bigint, machine text, version integer, fence bigint, step text, attempt integer, crashes integer,
  tenant text, key text, claimed_at timestamptz, has_inbox boolean, awaits text[], parent_id bigint, round integer,
  priority smallint, concurrency_limit text, own_limit text, weight integer, await_unit_id bigint
)
language plpgsql as $$
#variable_conflict use_column
declare
  ids bigint[];
  names text[];
  is_plain boolean;
  moment timestamptz;
begin
  perform set_config('synchronous_commit', 'off', true);

  -- Whoever waits for a limit holds up nobody's row: a look without locks tells which limits there are to wait for.
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
  if is_plain then
    perform pg_advisory_xact_lock_shared(n.hash)
    from (select distinct hashtextextended('stepwell limit:' || split_part(g.name, ':', 1), 0) as hash
          from unnest(names) as g(name)
          order by 1) n;
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

  -- What stands there by now: others may have taken some, or hold some locked. What needs anything else is missed.
  select array_agg(w.id) filter (where w.is_plain), array_agg(w.concurrency_limit) filter (where w.is_plain),
         bool_and(w.is_plain)
  into ids, names, is_plain
  from (
    select i.id, i.concurrency_limit,
           coalesce(i.concurrency_limit = any (names), false) and i.rate_limit is null and i.concurrency_key is null
             and (i.machine || '@' || i.version) = any (labels) as is_plain
    from stepwell.instances i
    where i.queue = of_queue and i.status = 'runnable' and i.hold is null and i.share is null
      and (select stepwell._may_claim(of_queue))
      and (passed_over = '{}' or not (i.machine || '@' || i.version) = any (passed_over))
    order by i.priority, i.due_at, i.id
    limit most
    for no key update skip locked
  ) w;
  if not is_plain then
    verdict := 'missed';
    return next;
  end if;

  moment := clock_timestamp();  -- a claim counts from here on: the statement may have waited for long
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
    -- The lowest free numbers, as many as may be given; whoever gets none has null.
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
$$;

-- The engine's own statement: see 0003_statements.
create or replace function stepwell._limits_free(text[], integer[], boolean)
returns table ("queue" text)
language plpgsql as $$
#variable_conflict use_column
begin
return query
-- Let the most urgent rows of each line go, as many as there is room for, and at most $2 of each (null: no matter how
-- many). Run under limits/lock.sql, after the statement that made room.
-- Keeps: nothing is let go while the limit is full; a limit that nobody declares lets nobody go. Those of queues that
--   are claimed from go first: the backlog of a paused queue, or of one that no worker serves, blocks no other.
--   With $3 somebody looks who made no room himself: those let go before may not be claimed yet, and some not for long,
--   for want of a worker with free hands. So of each queue go fewer by as many as were let go and are seen among the
--   first of the queue; and the first of every queue that is claimed from goes, so that none waits for another's hands.
-- Index: instances_slot; instances_in_limit_line, one step per queue, and then only rows that may go; the primary key;
--   with $3 up to 100 rows per queue of instances_claim and of instances_fair.
-- Locks: the rows, skip locked (what a foreign transaction holds is passed over; keys/find_idle.sql finds it).
-- Returns: the queue of each row let go.
with recursive room as materialized (
  select g.key, least(g.most, l.n - (select count(*)
                                     from stepwell.instances e
                                     where e.concurrency_limit = g.key and e.status = 'executing'
                                       and e.slot is not null))::integer as number
  from unnest($1::text[], $2::integer[]) as g(key, most)
  join stepwell.limits l on l.kind = 'concurrency' and l.name = any (array[split_part(g.key, ':', 1)])
), queues(key, number, queue) as (
  select r.key, r.number, (select i.queue
                           from stepwell.instances i
                           where i.concurrency_limit = r.key and i.status = 'runnable' and i.hold = 'limit'
                             and i.hold_reason is null
                           order by i.queue
                           limit 1)
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
  where q.queue is not null
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
$$;
revoke execute on function stepwell._limits_free from public;

-- See sql/limits/let_go.sql.
create function stepwell._let_go(keys text[], most integer[])
returns table (queue text)
language plpgsql as $$
begin
  perform set_config('synchronous_commit', 'off', true);
  perform stepwell._lock_limits(keys);
  return query select f.queue from stepwell._limits_free(keys, most, false) f;
end
$$;

-- Workers call them: a role of their own goes on, before its grants are run again.
do $$
declare
  caller text;
begin
  for caller in
    select distinct quote_ident(pg_get_userbyid(a.grantee))
    from pg_proc p, aclexplode(p.proacl) a
    where p.oid = 'stepwell._answer_one'::regproc and a.privilege_type = 'EXECUTE'
      and a.grantee not in (0, p.proowner)
  loop
    execute 'grant execute on function stepwell._claim_slots, stepwell._let_go, stepwell._lock_limits, '
            'stepwell._limits_free to ' || caller;
  end loop;
end
$$;
