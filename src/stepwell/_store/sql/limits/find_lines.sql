-- Find the lines, of any part, behind concurrency limits. $1: their names. Index: instances_in_limit_line, one step per
-- part (chr(59) stands right behind the ':'). Locks: none. Returns: the limits that somebody waits for.
with recursive line(name, key) as (
  select g.name, (select i.concurrency_limit
                  from stepwell.instances i
                  where i.status = 'runnable' and i.hold = 'limit' and i.hold_reason is null
                    and i.concurrency_limit >= g.name
                  order by i.concurrency_limit
                  limit 1)
  from unnest($1::text[]) as g(name)
  union all
  select l.name, (select i.concurrency_limit
                  from stepwell.instances i
                  where i.status = 'runnable' and i.hold = 'limit' and i.hold_reason is null
                    and i.concurrency_limit > l.key
                  order by i.concurrency_limit
                  limit 1)
  from line l
  where l.key is not null and l.key < l.name || chr(59)
)
select l.key
from line l
where l.key = l.name or l.key > l.name || ':' and l.key < l.name || chr(59)
