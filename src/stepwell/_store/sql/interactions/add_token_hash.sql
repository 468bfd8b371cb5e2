-- Store the hash of a token that is given out for an interaction, so that SQL can check the token without the secret.
-- Keeps: the hashes of tokens given out before under other keys: the last four, each once.
-- Index: the primary key.
-- Locks: the interaction; waits for other transactions.
-- Returns: nothing.
update {schema}.interactions q
set seal = g.seal,
    earlier_seals = case when q.seal <> g.seal
                         then (array_remove(array_prepend(q.seal, q.earlier_seals), g.seal))[1:4]
                         else q.earlier_seals end
from (select decode($2::text, 'hex') as seal) g
where q.id = $1::uuid
