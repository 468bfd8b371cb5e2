-- Store the hashes of tokens that are sent with interactions which a worker has claimed.
-- Keeps: waits for no lock: an interaction that is being completed right now is sent later, if it is not completed.
--   Earlier hashes stay, as in interactions/add_token_hash.sql.
-- Index: the primary key. See docs/internals/sql-plans.md.
-- Locks: the interactions, skip locked.
-- Returns: the interactions with a stored hash.
with mine as materialized (
  select q.id, decode(g.seal, 'hex') as seal
  from unnest($2::uuid[], $3::text[]) as g(id, seal)
  join {schema}.interactions q on q.id = any (array[g.id])
  where q.status || '' = 'dispatching' and q.worker_id = $1
  for no key update of q skip locked
)
update {schema}.interactions q
set seal = m.seal,
    earlier_seals = case when q.seal <> m.seal
                         then (array_remove(array_prepend(q.seal, q.earlier_seals), m.seal))[1:4]
                         else q.earlier_seals end
from mine m
where q.id = any (array[m.id])
returning q.id::text as id
