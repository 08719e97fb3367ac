//! As whom a deployment is made.

/// Deploys as the role that owns what is deployed already, or the schema, where this one can: functions run as their owner, and
/// who owns the schema decides what they find there. A superuser's would lend that role everything.
///
/// Whoever is only allowed to create in somebody else's schema deploys as itself; so does a member that does not inherit, which
/// could not use what it deployed as that role. For the deployer and for psql, with `search_path` set.
pub(super) const BECOME_OWNER: &str = "\
do $$
declare
    v_schema   constant regnamespace := to_regnamespace(split_part(current_setting('search_path'), ',', 1));
    v_owner    name;
    v_deployed boolean;
begin
    select pg_get_userbyid(coalesce(c.relowner,
                                    case when pg_get_userbyid(n.nspowner) <> 'pg_database_owner' then n.nspowner
                                         -- In a cloud that is a role with rights that nobody asked for.
                                         when r.rolsuper then d.datdba
                                         else r.oid end)),
           c.oid is not null
      into v_owner, v_deployed
      from pg_namespace as n
      join pg_database as d on d.datname = current_database()
      join pg_roles as r on r.rolname = current_user
      left join pg_class as c on c.relnamespace = n.oid and c.relname = 'mailboxes' and c.relkind = 'r'
     where n.oid = v_schema;
    if v_owner = current_user then
        null;
    elsif pg_has_role(v_owner, 'usage')
          and pg_has_role(v_owner, case when current_setting('server_version_num')::integer < 160000 then 'member' else 'set' end) then
        execute format('set local role %I', v_owner);
    elsif v_deployed and not pg_has_role(v_owner, 'usage') then
        raise exception 'what is deployed in schema % belongs to role \"%\": deploy as that role, or as a member that inherits from it',
            v_schema, v_owner using errcode = 'insufficient_privilege';
    end if;
end
$$;";
