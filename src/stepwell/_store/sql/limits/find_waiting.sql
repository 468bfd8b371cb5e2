-- Find the parts of the concurrency limit $1 that have a wait queue. One page: up to $3 parts after the part $2; null:
-- from the start, with the limit itself first.
-- Index: instances_limit_queue, one step per part (chr(59) is the character after the ':' between name and part).
-- Locks: none.
-- Returns: the limits that rows wait for, in the order of their keys.
with recursive parts(key, place) as (
  select case when $2::text is null and exists (select from {schema}.instances i
                                                where i.status = 'runnable' and i.hold = 'limit'
                                                  and i.hold_reason is null and i.concurrency_limit = $1
                                                offset 0)
              then $1
              else (select i.concurrency_limit
                    from {schema}.instances i
                    where i.status = 'runnable' and i.hold = 'limit' and i.hold_reason is null
                      and i.concurrency_limit > coalesce($2::text, $1 || ':')
                      and i.concurrency_limit < $1 || chr(59)
                    order by i.concurrency_limit
                    limit 1)
         end, 1
  union all
  select (select i.concurrency_limit
          from {schema}.instances i
          where i.status = 'runnable' and i.hold = 'limit' and i.hold_reason is null
            and i.concurrency_limit > greatest(p.key, $1 || ':') and i.concurrency_limit < $1 || chr(59)
          order by i.concurrency_limit
          limit 1), p.place + 1
  from parts p
  where p.key is not null and p.place < $3::integer
)
select p.key
from parts p
where p.key is not null
order by p.place
