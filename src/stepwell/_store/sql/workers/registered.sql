-- Tell which of the given machine versions a live worker registers.
-- Locks: none.
select m.name
from unnest($1::text[]) as m(name)
where exists (select from {schema}.workers w
              where w.lease_until > pg_catalog.now() and w.machines @> array[m.name])
