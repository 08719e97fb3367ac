-- Makes each mailbox claimable no later than its new message is visible, creating it if need be.
-- p_marked: the caller has marked itself in flight. Then a mailbox that is leased, or due earlier, is left alone:
-- whoever ends that lease or finds it empty must first prove that nobody is in flight. Otherwise every mailbox
-- is locked until the caller commits, so that they have to wait and look after it.
-- Returns the instances that somebody should look for: those that are not leased by p_node, the process, which looks when it
-- ends its lease. What others have leased is worth a look because that tells when the lease ends.
-- Locks: the mailboxes it writes, by instance id.
create or replace function wake_mailboxes(
    p_instance_ids text[],
    p_visible_at   timestamptz[],
    p_marked       boolean,
    p_node         uuid default null
) returns text[]
language plpgsql
as $$
declare
    -- Up to here a few small statements for each cost less than starting large ones.
    c_few    constant integer := 4;
    v_few    boolean := cardinality(p_instance_ids) <= c_few;
    v_due    text[] := '{}'::text[];
    v_is_new boolean;
    v_is_due boolean;
    v_leased boolean;
begin
    if p_instance_ids is null then
        return v_due;
    end if;
    for v_position in 2 .. cardinality(p_instance_ids) loop
        exit when not v_few;
        v_few := p_instance_ids[v_position - 1] < p_instance_ids[v_position] collate "C";
    end loop;
    if v_few then
        -- The usual case: in the order of their ids.
        for v_position in 1 .. cardinality(p_instance_ids) loop
            v_is_new := false;
            if p_marked then
                select b.lease is not null or b.available_at <= p_visible_at[v_position],
                       b.lease is not null and b.cached_by = p_node and b.available_at > clock_timestamp()
                  into v_is_due, v_leased
                  from mailboxes as b
                 where b.instance_id = p_instance_ids[v_position];
                v_is_new := not found;
                if v_is_due then
                    if v_leased is not true then
                        v_due := v_due || p_instance_ids[v_position];
                    end if;
                    continue;
                end if;
            end if;
            if not v_is_new then
                update mailboxes as m
                   set available_at = p_visible_at[v_position]
                 where m.instance_id = p_instance_ids[v_position]
                   and m.lease is null
                   and m.available_at > p_visible_at[v_position];
                v_is_new := not found;
            end if;
            if v_is_new then
                -- Or has become due since, or gone, or come.
                insert into mailboxes as m (instance_id, available_at)
                values (p_instance_ids[v_position], p_visible_at[v_position])
                    on conflict (instance_id) do update
                   set available_at = excluded.available_at
                 where m.lease is null
                   and m.available_at > excluded.available_at;
            end if;
            v_due := v_due || p_instance_ids[v_position];
        end loop;
        return v_due;
    end if;
    insert into mailboxes as m (instance_id, available_at)
    select t.instance_id, t.visible_at
      from (select u.instance_id, min(u.visible_at) as visible_at
              from unnest(p_instance_ids, p_visible_at) as u (instance_id, visible_at)
             group by u.instance_id) as t
     where not p_marked
        or coalesce((select b.lease is null and b.available_at > t.visible_at
                       from mailboxes as b
                      where b.instance_id = t.instance_id), true)
     order by t.instance_id collate "C"
        on conflict (instance_id) do update
       set available_at = excluded.available_at
     where m.lease is null
       and m.available_at > excluded.available_at;
    return array(select distinct t.instance_id
                   from unnest(p_instance_ids) as t (instance_id)
                  where (select b.lease is not null
                                and b.cached_by = p_node
                                and b.available_at > clock_timestamp()
                           from mailboxes as b
                          where b.instance_id = t.instance_id) is not true);
end
$$;
