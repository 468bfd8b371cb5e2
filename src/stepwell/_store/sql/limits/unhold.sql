-- Let rows back into the claim's index that were put aside because their limit did not exist, or was too small for
-- them, and that fit it now. Index: instances_unlimited, normally empty; limits by kind and name.
-- Locks: up to 1,000 rows, skip locked. Returns: the queue of each.
with fitting as materialized (
  select i.id
  from stepwell.instances i
  where i.status = 'runnable' and i.hold in ('limit', 'rate') and i.hold_reason is not null
    and (i.concurrency_limit is null
         or exists (select from stepwell.limits l
                    where l.kind = 'concurrency' and l.name = split_part(i.concurrency_limit, ':', 1)
                    offset 0))
    and (i.rate_limit is null
         or exists (select from stepwell.limits l
                    where l.kind = 'rate' and l.name = split_part(i.rate_limit, ':', 1) and l.burst >= i.weight
                    offset 0))
  limit 1000
  for no key update of i skip locked
)
update stepwell.instances i
set hold = null, hold_reason = null
from fitting f
where i.id = any (array[f.id])
returning i.queue
