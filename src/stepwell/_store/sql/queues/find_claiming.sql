-- Find the transactions that are claiming now, each from its check of pauses to its end (_may_claim): only they lock
-- the table of queues in this mode. $1: only those of them; null: all.
-- Index: none; pg_locks is in memory.
-- Locks: none.
-- Returns: each transaction with the pid of its server process.
select l.virtualtransaction as transaction, l.pid
from pg_locks l
where l.locktype = 'relation' and l.mode = 'RowShareLock' and l.granted
  and l.relation = '{schema}.queues'::regclass
  and l.database = (select d.oid from pg_database d where d.datname = current_database())
  and l.pid is distinct from pg_backend_pid()
  and ($1::text[] is null or l.virtualtransaction = any ($1))
