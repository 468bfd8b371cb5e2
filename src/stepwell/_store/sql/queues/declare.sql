-- Write how queues are shared out, as a starting worker declares it ($2: by what; null: not at all).
-- Keeps: a queue without a row gets none unless it is fair.
-- Index: the primary key.
-- Locks: the rows that change.
-- Returns: the queues with a new declaration, and whether an earlier one differed.
insert into {schema}.queues as q (name, fair_by, changed_at)
select n.name, n.fair_by, {schema}.now()
from unnest($1::text[], $2::text[]) as n(name, fair_by)
where n.fair_by is not null
   or exists (select from {schema}.queues e where e.name = n.name and e.fair_by is not null)
order by n.name
on conflict (name) do update
set fair_by = excluded.fair_by, changed_at = excluded.changed_at
where q.fair_by is distinct from excluded.fair_by
returning q.name, q.fair_by, q.xmax <> 0 as is_changed
