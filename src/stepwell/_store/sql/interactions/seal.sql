-- Keep the hash of the token that is handed out for a question: so SQL can check it without knowing the secret.
-- Index: the primary key. Locks: the questions. Returns: nothing.
update stepwell.interactions q
set seal = decode(g.seal, 'hex')
from unnest($1::uuid[], $2::text[]) as g(id, seal)
where q.id = any (array[g.id])
