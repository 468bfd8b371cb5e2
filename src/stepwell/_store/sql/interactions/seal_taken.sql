-- Keep the hashes of tokens that go out with questions which a worker has taken.
-- Keeps: nobody is waited for; what is being answered right now goes out later, if it is not answered. Hashes of those
--   handed out before stay, as in seal.sql.
-- Index: the primary key (|| '': no other). Locks: the questions, skip locked. Returns: those that were sealed.
with mine as materialized (
  select q.id, decode(g.seal, 'hex') as seal
  from unnest($2::uuid[], $3::text[]) as g(id, seal)
  join stepwell.interactions q on q.id = any (array[g.id])
  where q.status || '' = 'dispatching' and q.worker_id = $1
  for no key update of q skip locked
)
update stepwell.interactions q
set seal = m.seal,
    earlier_seals = case when q.seal <> m.seal
                         then (array_remove(array_prepend(q.seal, q.earlier_seals), m.seal))[1:4]
                         else q.earlier_seals end
from mine m
where q.id = any (array[m.id])
returning q.id::text as id
