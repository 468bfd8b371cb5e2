-- Take the transaction back from the step: from here on it plans as a worker does, in the role that it came with ($1).
-- Keeps: the settings are local, so the next step on this connection plans its own queries as usual. The author's
--   statement timeout does not apply: the step's own timeout ends them. The transaction now takes locks that others
--   need; a frozen host keeps them for $2 milliseconds only. Its session loses the worker's id, since no author's code
--   runs in it any more.
-- Index: none.
-- Locks: none.
-- Returns: the mark, if this is still the marked transaction; the lock timeout; and Postgres's deadlock timeout.
select current_setting('{schema}.step', true) as mark,
       current_setting('lock_timeout') as lock_timeout,
       current_setting('deadlock_timeout')::interval as deadlock_timeout,
       set_config('role', $1, true),
       set_config('application_name', '{application} step', true),
       set_config('statement_timeout', '0', true),
       set_config('idle_in_transaction_session_timeout', $2, true),
       set_config('timezone', 'UTC', true),
       set_config('jit', 'off', true),
       set_config('plan_cache_mode', 'force_generic_plan', true),
       set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true),
       set_config('enable_mergejoin', 'off', true)
