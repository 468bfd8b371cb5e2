-- Waiting and identity: the inbox, tombstones of keys that are never free again, retention, the operator's hand.

-- The inbox: a row is there before anyone is woken. A consumed signal with a dedup key stays, without its payload,
-- until its instance ends, so that the same event has one effect only.
create table stepwell.signals (
  id           bigint generated always as identity primary key,  -- arrival order within an inbox
  instance_id  bigint not null,
  sent_at      timestamptz not null,
  consumed     boolean not null default false,
  name         text collate "C" not null,
  dedup_key    text collate "C",
  payload      jsonb
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- One effect per event.
create unique index signals_dedup on stepwell.signals (instance_id, dedup_key)
  where dedup_key is not null;
create index signals_inbox on stepwell.signals (instance_id, id);


-- Keys of scope 'forever' whose instances were pruned.
create table stepwell.tombstones (
  tenant       text collate "C" not null,
  key          text collate "C" not null,
  instance_id  bigint not null,
  buried_at    timestamptz not null,
  primary key (tenant, key)
);


-- How long ended instances of a machine are kept; null: for ever.
alter table stepwell.machines add column retention interval default interval '1 day';

-- What an operator did to an instance last: {act, by, reason, at}.
alter table stepwell.instance_data add column operated jsonb;
