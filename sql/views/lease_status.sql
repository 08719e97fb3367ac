-- Each lease: who holds what until when. kind: 'orchestration' (a turn), 'activity' or 'session'.
-- One that has expired stays here until somebody else takes over: its holder died, or was too slow to renew it.
create or replace view lease_status as
select l.kind,
       l.instance_id,
       l.execution_id,
       l.activity_id,
       l.session_id,
       l.owner_id,
       l.expires_at,
       l.expires_at <= statement_timestamp() as is_expired,
       l.expires_at - statement_timestamp() as remaining
  from (select 'orchestration' as kind, m.instance_id, i.current_execution_id as execution_id, null::bigint as activity_id,
               null::text as session_id, null::text as owner_id, m.available_at as expires_at
          from mailboxes as m
          left join instances as i on i.instance_id = m.instance_id
         where m.lease is not null
           and m.available_at < 'infinity'
        union all
        select 'activity', w.instance_id, w.execution_id, w.activity_id, nullif(substr(w.session_id, 2), ''), null,
               w.available_at
          from worker_queue as w
         where w.lease is not null
        union all
        select 'session', null, null, null, substr(s.session_id, 2), s.owner_id, s.locked_until
          from sessions as s) as l;
