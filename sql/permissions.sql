-- Applied after the functions, in their transaction: PUBLIC has nothing of ours. What else is in the schema is
-- none of our business. The functions themselves follow, each by its name: the deployer knows the files.
revoke all on deployment, executions, history, instances, kv_delta, kv_store, mailboxes, orchestrator_queue,
    schema_history, sessions, worker_queue from public;
revoke all on execution_status, instance_counts, instance_events, instance_payloads, instance_status, instance_values,
    lease_status, orchestration_throughput, queue_health, scheduled_messages from public;
revoke all on sequence mailboxes_history_epoch_seq, orchestrator_queue_id_seq, worker_queue_id_seq from public;

-- Whoever may create in the schema decides what the functions find there. Somebody else's schema is theirs to close.
do $$
begin
    if exists (select
                 from pg_namespace as n
                cross join lateral aclexplode(n.nspacl) as a
                where n.oid = quote_ident(current_schema())::regnamespace
                  and a.grantee = 0
                  and a.privilege_type = 'CREATE'
                  and pg_has_role(n.nspowner, 'usage')) then
        execute format('revoke create on schema %I from public', current_schema());
    end if;
end
$$;
