-- Keep the hash of the token that is handed out for a question: so SQL can check it without knowing the secret.
-- Index: the primary key. Locks: the question; waits for whoever holds it. Returns: nothing.
update stepwell.interactions q
set seal = decode($2::text, 'hex')
where q.id = $1::uuid
