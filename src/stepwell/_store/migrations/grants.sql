-- Let one role of this database call the public SQL functions, and do nothing else. Run at the end of every migration.
-- Its name is the setting {schema}.client_role of the migrating session, or what it was before, or {schema}_client_ and
-- the name of the database. If the migrating role may not create roles, a role that may has to create it once.
do $$
declare
  found record;
  public_functions constant text[] :=
    array['start', 'start_many', 'signal', 'signal_many', 'cancel', 'try_cancel', 'complete'];
  wanted text := nullif(current_setting('{schema}.client_role', true), '');
  before text;
begin
  -- Revoke what Postgres grants to PUBLIC by default. A column of one of these row types could block a migration.
  for found in
    select 'function' as kind, p.oid::regprocedure::text as name
    from pg_proc p
    where p.pronamespace = '{schema}'::regnamespace and pg_has_role(p.proowner, 'usage')
      and exists (select from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a where a.grantee = 0)
    union all
    select 'type', t.oid::regtype::text
    from pg_type t
    where t.typnamespace = '{schema}'::regnamespace and pg_has_role(t.typowner, 'usage') and t.typcategory <> 'A'
      and exists (select from aclexplode(coalesce(t.typacl, acldefault('T', t.typowner))) a where a.grantee = 0)
  loop
    execute format('revoke all on %s %s from public', found.kind, found.name);
  end loop;

  select m.client_role into before from {schema}.meta m;
  wanted := coalesce(wanted, before, case
    when octet_length('{schema}_client_' || current_database()) <= 63 then '{schema}_client_' || current_database()
    else left('{schema}_client_' || md5(current_database()), 63)
  end);
  if before <> wanted and exists (select from pg_roles where rolname = before) then
    execute format('revoke all on schema {schema} from %I', before);
    execute format('revoke all on all functions in schema {schema} from %I', before);
  end if;
  update {schema}.meta m set client_role = wanted where m.client_role is distinct from wanted;

  if not exists (select from pg_roles where rolname = wanted) then
    begin
      execute format('create role %I nologin', wanted);
    exception
      when insufficient_privilege then
        raise notice 'the role % can not be created by %', wanted, current_user
          using hint = format('Let a role that may do so run: create role %I nologin; then migrate again.', wanted);
        return;
      when duplicate_object or unique_violation then
        null;  -- another database of this server is migrating too
    end;
  end if;
  execute format('grant usage on schema {schema} to %I', wanted);
  for found in
    select p.oid::regprocedure::text as name
    from pg_proc p
    where p.pronamespace = '{schema}'::regnamespace and p.proname = any (public_functions)
  loop
    execute format('grant execute on function %s to %I', found.name, wanted);
  end loop;
end
$$;
