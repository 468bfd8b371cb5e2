-- Take a transaction over from its step: from here on it plans as a worker does, as the role it came with ($1).
-- Keeps: the settings are local, so that the next step on this connection plans its own queries as usual. A timeout
--   for the author's statements is none for ours: the step's own time ends them.
-- Index: none. Locks: none. Returns: the mark, if this is still the transaction that was marked; the lock timeout.
select current_setting('stepwell.step', true) as mark,
       current_setting('lock_timeout') as lock_timeout,
       set_config('role', $1, true),
       set_config('statement_timeout', '0', true),
       set_config('timezone', 'UTC', true),
       set_config('jit', 'off', true),
       set_config('plan_cache_mode', 'force_generic_plan', true),
       set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true),
       set_config('enable_mergejoin', 'off', true)
