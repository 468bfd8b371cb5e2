-- Find keys that nobody holds although rows wait behind them. (One that was let go may not be claimed yet; then one
-- more may go, and waits again when its claim finds the key busy.)
-- Normally finds nothing; a row that a foreign transaction held when its key was freed is found here.
-- Index: instances_behind_key, one step per distinct key. Locks: none. Returns: up to 1,000 keys.
with recursive line(key) as (
  (select i.concurrency_key from stepwell.instances i
   where i.status = 'runnable' and i.hold = 'key'
   order by i.concurrency_key limit 1)
  union all
  select (select i.concurrency_key from stepwell.instances i
          where i.status = 'runnable' and i.hold = 'key' and i.concurrency_key > line.key
          order by i.concurrency_key limit 1)
  from line
  where line.key is not null
)
select line.key
from line
where line.key is not null
  and not exists (select from stepwell.instances e
                  where e.concurrency_key = line.key and e.status = 'executing'
                  offset 0)
limit 1000
