-- Two agents may read one log and apply one strategy: what is keyed by its content alone belongs to its agent as well.
alter table log_file drop constraint log_file_pkey;
alter table log_file add primary key (agent, uri);

alter table raw_record drop constraint raw_record_pkey;
alter table raw_record add primary key (agent, id);

alter table quarantine drop constraint quarantine_pkey;
alter table quarantine add primary key (agent, key);

alter table strategy drop constraint strategy_pkey;
alter table strategy add primary key (agent, id);
