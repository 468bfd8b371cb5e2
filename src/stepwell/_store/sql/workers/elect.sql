-- Try to be the one that does a duty ($1), to the end of the transaction. Waits for nobody.
select pg_try_advisory_xact_lock(hashtextextended('stepwell.duty.' || $1, 0)) as elected
