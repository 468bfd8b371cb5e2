-- Who may use the SQL doors: the role stepwell_client, and it may do nothing else. Run at the end of every migration;
-- where the migrating role may not create roles, a superuser says: create role stepwell_client nologin
do $$
begin
  if to_regproc('stepwell.try_cancel') is null then
    return;  -- an older version on its way up: there are no doors yet
  end if;
  if not exists (select from pg_roles where rolname = 'stepwell_client') then
    begin
      create role stepwell_client nologin;
    exception
      when insufficient_privilege then
        raise notice 'the role stepwell_client can not be created here; let a superuser create it and migrate again';
        return;
      when duplicate_object or unique_violation then
        null;  -- another database of this server is migrating too
    end;
  end if;
  grant usage on schema stepwell to stepwell_client;
  grant execute on function
    stepwell.start, stepwell.start_many, stepwell.signal, stepwell.signal_many, stepwell.cancel,
    stepwell.try_cancel to stepwell_client;
end
$$;
