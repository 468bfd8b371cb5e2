-- Try to be the one that does a duty ($1). Locks: one advisory lock, to the end of the transaction; waits for nobody.
select pg_try_advisory_xact_lock(hashtextextended('stepwell.duty.' || $1, 0)) as elected
