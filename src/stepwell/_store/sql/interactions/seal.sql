-- Keep the hash of the token that is handed out for a question: so SQL can check it without knowing the secret.
-- Keeps: the hashes of those handed out before, which were of other keys: the last four of them, each once.
-- Index: the primary key. Locks: the question; waits for whoever holds it. Returns: nothing.
update stepwell.interactions q
set seal = g.seal,
    earlier_seals = case when q.seal <> g.seal
                         then (array_remove(array_prepend(q.seal, q.earlier_seals), g.seal))[1:4]
                         else q.earlier_seals end
from (select decode($2::text, 'hex') as seal) g
where q.id = $1::uuid
