-- Applies a turn's changes to the values of the current execution, and merges those into the instance's
-- values when the execution ends. A clear comes first; keys set before it are not in p_keys.
-- p_values: NULL removes the key. p_updated_at_ms: NULL means now.
-- Locks: none of its own; the caller holds the mailbox.
create or replace function apply_kv(
    p_instance_id   text,
    p_clears        boolean,
    p_keys          text[],
    p_values        text[],
    p_updated_at_ms bigint[],
    p_merges        boolean
) returns void
language plpgsql
as $$
declare
    v_now_ms constant bigint := ms_from_timestamp(clock_timestamp());
begin
    if p_clears then
        update kv_delta as d
           set value = null,
               last_updated_at_ms = v_now_ms
         where d.instance_id = p_instance_id;
        insert into kv_delta (instance_id, key, value, last_updated_at_ms)
        select p_instance_id, s.key, null, v_now_ms
          from kv_store as s
         where s.instance_id = p_instance_id
            on conflict (instance_id, key) do nothing;
    end if;

    if cardinality(p_keys) > 0 then
        insert into kv_delta as d (instance_id, key, value, last_updated_at_ms)
        select p_instance_id, t.key, t.value, coalesce(t.updated_at_ms, v_now_ms)
          from unnest(p_keys, p_values, p_updated_at_ms) as t (key, value, updated_at_ms)
            on conflict (instance_id, key) do update
           set value = excluded.value,
               last_updated_at_ms = excluded.last_updated_at_ms;
    end if;

    if p_merges and exists (select from kv_delta as d where d.instance_id = p_instance_id) then
        with ended as (
            delete from kv_delta as d where d.instance_id = p_instance_id
            returning d.key, d.value, d.last_updated_at_ms
        ), removed as (
            delete from kv_store as s
             using ended as e
             where e.value is null
               and s.instance_id = p_instance_id
               and s.key = e.key
        )
        insert into kv_store as s (instance_id, key, value, last_updated_at_ms)
        select p_instance_id, e.key, e.value, e.last_updated_at_ms
          from ended as e
         where e.value is not null
            on conflict (instance_id, key) do update
           set value = excluded.value,
               last_updated_at_ms = excluded.last_updated_at_ms;
    end if;
end
$$;
