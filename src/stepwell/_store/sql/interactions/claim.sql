-- Claim up to $3 interactions of one transport that are to be sent, the longest waiting first, items in order.
-- Keeps: one worker sends an interaction at a time (skip locked, status). None is sent that is overdue, or belongs to
--   an ended unit. A worker without keys to sign tokens ($4: it has keys) skips those that require one, but reads each
--   of them.
-- Index: interactions_dispatch; the primary keys.
-- Locks: the interactions, skip locked.
-- Returns: what a transport is given.
with taken as materialized (
  select q.id
  from {schema}.interactions q
  where q.transport = $2 and q.status = 'waiting' and q.next_at <= {schema}.now()
    and (q.deadline is null or q.deadline > {schema}.now())
    and exists (select from {schema}.await_units u
                where u.id = q.unit_id and u.status || '' = 'waiting' and ($4::boolean or not u.requires_token)
                offset 0)
  order by q.next_at, q.unit_id, q.item
  limit $3
  for no key update skip locked
), claimed as (
  update {schema}.interactions q
  set status = 'dispatching', worker_id = $1, attempts = q.attempts + 1
  from taken t
  where q.id = any (array[t.id])
  returning q.*
)
select c.id::text as interaction_id, c.correlation::text as correlation_id, c.tenant, c.instance_id, u.machine, u.step,
       c.transport, case when u."window" is not null then c.item end as index, c.request::text as request,
       t.name as reply_type, t.schema::text as reply_schema, c.idempotency_key, c.attempts as attempt, c.assignee,
       c.group_name as "group", c.deadline, u.requires_token
from claimed c
join {schema}.await_units u on u.id = any (array[c.unit_id])
join {schema}.reply_types t on t.id = any (array[u.reply_type])
order by c.next_at, c.unit_id, c.item
