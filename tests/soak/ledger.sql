-- What triggers record during a soak, whichever process causes it: arrivals, ends, joins, lost claims, offences.
-- The triggers name the schema: connections of the engine look into `pg_catalog` only.
create table soak_log (
  number    bigint generated always as identity primary key,
  kind      text not null,
  instance  bigint not null,
  fence     bigint,
  signal    bigint,
  payload   jsonb,
  dedup_key text
);
create table soak_sections (
  number    bigint generated always as identity primary key,
  key       text not null,
  instance  bigint not null,
  fence     bigint not null,
  begun     timestamptz not null default clock_timestamp(),
  ended     timestamptz
);

create function soak_note_signal() returns trigger language plpgsql as $$
begin
  insert into public.soak_log (kind, instance, signal, payload, dedup_key)
  values ('arrived', new.instance_id, new.id, new.payload, new.dedup_key);
  return null;
end $$;
create trigger soak_signals after insert on stepwell.signals for each row execute function soak_note_signal();

create function soak_note_instance() returns trigger language plpgsql as $$
begin
  if new.status = 'done' and old.status <> 'done' then
    insert into public.soak_log (kind, instance, fence) values ('done', new.id, new.fence);
  end if;
  if new.joined and not old.joined then
    insert into public.soak_log (kind, instance, fence) values ('joined', new.id, new.fence);
  end if;
  if old.status = 'executing' and (new.fence = old.fence or new.status = 'cancelled') then
    insert into public.soak_log (kind, instance, fence) values ('claim lost', new.id, old.fence);
  end if;
  if new.fence < old.fence then
    insert into public.soak_log (kind, instance, fence) values ('offence: the fence shrank', new.id, old.fence);
  end if;
  if old.joined and not new.joined then
    insert into public.soak_log (kind, instance, fence) values ('offence: a join was forgotten', new.id, old.fence);
  end if;
  if old.status in ('done', 'failed', 'cancelled') and new.status = 'executing' then
    insert into public.soak_log (kind, instance, fence) values ('offence: an ended instance was claimed', new.id, old.fence);
  end if;
  -- A signal may claim the parked instance that it wakes.
  if new.status = 'executing' and (old.status <> 'runnable' and old.status <> 'executing' or old.hold is not null)
     and not (old.status = 'awaiting_signal' and new.has_inbox and not old.has_inbox) then
    insert into public.soak_log (kind, instance, fence) values ('offence: a held or parked row was claimed', new.id, old.fence);
  end if;
  return null;
end $$;
create trigger soak_instances after update on stepwell.instances for each row execute function soak_note_instance();
