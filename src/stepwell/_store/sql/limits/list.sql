-- List the limits as they are and as the code declares them, with how many rows execute and wait, all parts counted.
-- Index: instances_slot, instances_limit_queue, instances_rate_queue: the entries of each limit are counted.
--   chr(59) is the character after the ':' between name and part.
-- Locks: none.
-- Returns: one row per limit. Executing rows of a rate limit are not counted: they have their tokens already.
select l.kind, l.name, l.n, l.per, l.burst, l.version, l.changed_at, l.changed_by,
       (l.declared ->> 'n')::integer as declared_n,
       make_interval(secs => (l.declared ->> 'per')::float8) as declared_per,
       (l.declared ->> 'burst')::integer as declared_burst,
       case l.kind when 'concurrency' then (
         select count(*)
         from {schema}.instances i
         where i.status = 'executing' and i.slot is not null
           and i.concurrency_limit >= l.name and i.concurrency_limit < l.name || chr(59)
           and (i.concurrency_limit = l.name or i.concurrency_limit > l.name || ':')
       ) end as executing,
       case l.kind when 'concurrency' then (
         select count(*)
         from {schema}.instances i
         where i.status = 'runnable' and i.hold = 'limit' and i.hold_reason is null
           and i.concurrency_limit >= l.name and i.concurrency_limit < l.name || chr(59)
           and (i.concurrency_limit = l.name or i.concurrency_limit > l.name || ':')
       ) else (
         select count(*)
         from {schema}.instances i
         where i.status = 'runnable' and i.hold = 'rate' and i.hold_reason is null
           and i.rate_limit >= l.name and i.rate_limit < l.name || chr(59)
           and (i.rate_limit = l.name or i.rate_limit > l.name || ':')
       ) end as waiting
from {schema}.limits l
order by l.name, l.kind
