-- Find the step at which continuations of an executing instance's unit start.
-- Index: the primary keys.
-- Locks: none.
-- Returns: that step, and the step that asks; nothing if nothing was asked, or replies start no continuations.
select u.item_step, u.step
from {schema}.instances i
join {schema}.await_units u on u.id = any (array[i.filling_unit_id])
where i.id = any (array[$1::bigint]) and u.item_step is not null
