-- Who may use the SQL doors: the role stepwell_client, and it may do nothing else. Run at the end of every migration.
-- Where the migrating role may not create roles, somebody who may says once: create role stepwell_client nologin
do $$
declare
  found record;
begin
  if to_regproc('stepwell.try_cancel') is null then
    return;  -- an older version on its way up: there are no doors yet
  end if;

  -- What Postgres gives to everybody by itself. A column of one of our row types would stand in a migration's way.
  for found in
    select 'function' as kind, p.oid::regprocedure::text as name
    from pg_proc p
    where p.pronamespace = 'stepwell'::regnamespace and pg_has_role(p.proowner, 'usage')
      and exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a where a.grantee = 0)
    union all
    select 'type', t.oid::regtype::text
    from pg_type t
    where t.typnamespace = 'stepwell'::regnamespace and pg_has_role(t.typowner, 'usage') and t.typcategory <> 'A'
      and exists (select from aclexplode(coalesce(t.typacl, acldefault('T', t.typowner))) a where a.grantee = 0)
  loop
    execute format('revoke all on %s %s from public', found.kind, found.name);
  end loop;

  if not exists (select from pg_roles where rolname = 'stepwell_client') then
    begin
      create role stepwell_client nologin;
    exception
      when insufficient_privilege then
        raise notice 'the role stepwell_client can not be created by %', current_user
          using hint = 'Let somebody who may run: create role stepwell_client nologin; then migrate again.';
        return;
      when duplicate_object or unique_violation then
        null;  -- another database of this server is migrating too
    end;
  end if;
  grant usage on schema stepwell to stepwell_client;
  grant execute on function
    stepwell.start, stepwell.start_many, stepwell.signal, stepwell.signal_many, stepwell.cancel,
    stepwell.try_cancel to stepwell_client;
  if to_regproc('stepwell.complete') is not null then
    grant execute on function stepwell.complete to stepwell_client;
  end if;
end
$$;
