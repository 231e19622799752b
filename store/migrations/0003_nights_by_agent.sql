-- Two agents may have a night of the same date: every night belongs to its agent.
alter table night drop constraint night_pkey;
alter table night add primary key (agent, night);

alter table ledger add column agent text;
update ledger set agent = coalesce((select night.agent from night where night.night = ledger.night), '');
alter table ledger alter column agent set not null;
drop index ledger_night_started_at_idx;
create index on ledger (agent, night, started_at);

drop index trajectory_night_kind_id_idx;
drop index trajectory_changed_night_kind_id_idx;
create index on trajectory (agent, night, kind, id);
create index on trajectory (agent, changed_night, kind, id) where changed_night <> night;

drop index failure_case_night_id_idx;  -- (agent, night, id) is there
drop index report_night_idx;
create index on report (agent, night);
