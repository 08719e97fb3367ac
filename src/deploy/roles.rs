//! Who needs which privileges, and who has others.

use std::collections::BTreeSet;
use std::fmt;

use tokio_postgres::types::Type;
use tokio_postgres::{GenericClient, Row};

use super::{EXPECTED, database, drift};
use crate::error::Error;
use crate::schema_name::{SchemaName, quote_identifier};
use crate::shell::{command, quoted};

/// What a role is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RoleKind {
    /// Runs orchestrations and activities, starts, reads, raises and cancels. Cannot delete.
    Runtime,
    /// Deletes instances and prunes executions.
    Cleanup,
    /// Reads the views that show no payloads.
    Dashboard,
    /// Reads all views.
    Payloads,
}

const DELETING: &[&str] = &[
    "delete_instance",
    "delete_instance_bulk",
    "delete_instances_atomic",
    "prune_executions",
];
/// What somebody who deletes has to know.
const FINDING: &[&str] = &[
    "get_deployment",
    "get_instance_tree",
    "get_parent_id",
    "get_queued_messages",
    "list_children",
    "list_executions",
    "list_instances",
];
/// Who may execute it has the purpose.
const RUNS: &str = "fetch_orchestration_item";
const DELETES: &str = "prune_executions";
const OBSERVING: &[&str] = &["get_deployment", "workers_wanted"];
const PAYLOAD_VIEWS: &[&str] = &["instance_events", "instance_payloads", "instance_values"];

/// The privileges of a kind of role, beside USAGE on the schema.
pub(crate) struct Grants {
    pub(crate) functions: Vec<&'static str>,
    pub(crate) views: Vec<&'static str>,
}

impl Grants {
    pub(crate) fn of(kind: RoleKind) -> Self {
        let views = |payloads: bool| {
            drift::names(EXPECTED, "view")
                .filter(|name| payloads || !PAYLOAD_VIEWS.contains(name))
                .collect()
        };
        match kind {
            RoleKind::Runtime => Self {
                functions: callable().filter(|name| !DELETING.contains(name)).collect(),
                views: Vec::new(),
            },
            RoleKind::Cleanup => Self {
                functions: [DELETING, FINDING].concat(),
                views: vec!["execution_status", "instance_status"],
            },
            RoleKind::Dashboard | RoleKind::Payloads => Self {
                functions: OBSERVING.to_vec(),
                views: views(kind == RoleKind::Payloads),
            },
        }
    }

    /// As SQL.
    pub(crate) fn statements(&self, schema: &SchemaName, role: &str) -> Vec<String> {
        let (schema, role) = (schema.quoted(), quote_identifier(role));
        let list = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| format!("{schema}.{name}")).collect();
            names.join(",\n    ")
        };
        let mut statements = vec![format!("grant usage on schema {schema} to {role};")];
        if !self.functions.is_empty() {
            statements.push(format!(
                "grant execute on function\n    {}\nto {role};",
                list(&self.functions)
            ));
        }
        if !self.views.is_empty() {
            statements.push(format!("grant select on\n    {}\nto {role};", list(&self.views)));
        }
        statements
    }
}

/// The functions that somebody outside calls: the others run as part of them.
fn callable() -> impl Iterator<Item = &'static str> {
    EXPECTED
        .lines()
        .filter(|line| line.contains(" security definer") && !line.contains(" returns trigger "))
        .filter_map(|line| line.strip_prefix("function ")?.split('(').next())
}

/// A role that has too much, or too little.
pub(crate) struct GrantProblem {
    pub(crate) message: String,
    /// What puts it right.
    pub(crate) command: String,
    pub(crate) is_lack: bool,
}

impl fmt::Display for GrantProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.message, self.command)
    }
}

/// Privileges that a deployment and [`Grants`] do not give, and grants that are incomplete (for an upgrade brings
/// functions that nobody may execute yet).
pub(crate) async fn grant_problems(
    client: &impl GenericClient,
    schema: &SchemaName,
) -> Result<Vec<GrantProblem>, Error> {
    let tables: Vec<&str> = drift::names(EXPECTED, "table").chain(["schema_history"]).collect();
    let views: Vec<&str> = drift::names(EXPECTED, "view").collect();
    let functions: Vec<&str> = drift::names(EXPECTED, "function").collect();
    let (place, mut problems) = (schema.quoted(), Vec::new());
    for sql in [EXCESSIVE, OWNERS] {
        let rows = client
            .query_typed(
                sql,
                &[
                    (&place, Type::TEXT),
                    (&tables, Type::TEXT_ARRAY),
                    (&views, Type::TEXT_ARRAY),
                    (&functions, Type::TEXT_ARRAY),
                ],
            )
            .await
            .map_err(database)?;
        problems.extend(excesses(&rows)?);
    }
    problems.extend(aimless(client, schema).await?);
    // Whoever lacks something for payloads is not told to become a dashboard without.
    let mut with_payloads = BTreeSet::new();
    for (kind, option, marker) in [
        (RoleKind::Runtime, "", RUNS),
        (RoleKind::Cleanup, " --for cleanup", DELETES),
        (RoleKind::Payloads, " --for dashboard --payloads", "instance_payloads"),
        (RoleKind::Dashboard, " --for dashboard", "queue_health"),
    ] {
        let mut grants = Grants::of(kind);
        if kind == RoleKind::Cleanup {
            // An application that deletes does without: they are for the command.
            grants.views.clear();
        }
        // Those of a dashboard have no other that tells. Whoever has but some of them was given no more on purpose.
        let telling: &[&str] = if kind == RoleKind::Dashboard {
            &grants.views
        } else {
            &[]
        };
        let rows = client
            .query_typed(
                INCOMPLETE,
                &[
                    (&schema.quoted(), Type::TEXT),
                    (&marker, Type::TEXT),
                    (&grants.functions, Type::TEXT_ARRAY),
                    (&grants.views, Type::TEXT_ARRAY),
                    (&PAYLOAD_VIEWS, Type::TEXT_ARRAY),
                    (&telling, Type::TEXT_ARRAY),
                ],
            )
            .await
            .map_err(database)?;
        for row in &rows {
            let role: String = row.try_get(0).map_err(database)?;
            let lacking: Vec<String> = row.try_get(1).map_err(database)?;
            let reads_payloads: bool = row.try_get(2).map_err(database)?;
            match kind {
                RoleKind::Payloads => drop(with_payloads.insert(role.clone())),
                RoleKind::Dashboard if with_payloads.contains(&role) => continue,
                _ => {}
            }
            problems.push(GrantProblem {
                message: format!("role {role:?} lacks {}", lacking.join(", ")),
                // The command takes the payload views away from a dashboard.
                command: if kind == RoleKind::Dashboard && reads_payloads {
                    let statements = grants.statements(schema, &role).join(" ");
                    statements.split_whitespace().collect::<Vec<_>>().join(" ")
                } else {
                    format!("{} grant{option} {}", command(schema), quoted(&role))
                },
                is_lack: true,
            });
        }
    }
    Ok(problems)
}

/// Functions that a role may execute and needs for nothing: those of no purpose that it has.
async fn aimless(client: &impl GenericClient, schema: &SchemaName) -> Result<Vec<GrantProblem>, Error> {
    // Which release it is, and how much work waits, anybody may be told.
    let telling: Vec<&str> = callable().filter(|name| !OBSERVING.contains(name)).collect();
    let (mut functions, mut markers) = (Vec::new(), Vec::new());
    for (kind, marker) in [(RoleKind::Runtime, RUNS), (RoleKind::Cleanup, DELETES)] {
        for function in Grants::of(kind).functions {
            functions.push(function);
            markers.push(marker);
        }
    }
    let rows = client
        .query_typed(
            AIMLESS,
            &[
                (&schema.quoted(), Type::TEXT),
                (&telling, Type::TEXT_ARRAY),
                (&functions, Type::TEXT_ARRAY),
                (&markers, Type::TEXT_ARRAY),
            ],
        )
        .await
        .map_err(database)?;
    let runtime = Grants::of(RoleKind::Runtime).functions;
    // What nodes have as well does not tell who deletes.
    let purposes = [
        (RUNS, runtime.as_slice(), "nodes need", ""),
        (DELETES, DELETING, "cleaning up takes", " --for cleanup"),
    ];
    let mut problems = excesses(&rows)?;
    for (problem, row) in problems.iter_mut().zip(&rows) {
        let (role, has): (String, Vec<String>) = (row.try_get(2).map_err(database)?, row.try_get(3).map_err(database)?);
        // It has a purpose, and lost the one function that tells: it does not have too much.
        let lost = purposes.iter().find(|(_, functions, ..)| {
            let count = has.iter().filter(|name| functions.contains(&name.as_str())).count();
            2 * count > functions.len()
        });
        if let Some((marker, _, purpose, option)) = lost {
            *problem = GrantProblem {
                message: format!("role {role:?} lacks EXECUTE on {marker}, and has most of what else {purpose}"),
                command: format!("{} grant{option} {}", command(schema), quoted(&role)),
                is_lack: true,
            };
        }
    }
    Ok(problems)
}

fn excesses(rows: &[Row]) -> Result<Vec<GrantProblem>, Error> {
    let problem = |row: &Row| {
        Ok(GrantProblem {
            message: row.try_get(0)?,
            command: row.try_get(1)?,
            is_lack: false,
        })
    };
    rows.iter().map(problem).collect::<Result<_, _>>().map_err(database)
}

/// Who may do what only owners may: with tables and views, their columns and sequences, and the schema. Who may create there decides what
/// the functions, which run as their owner, find there. PUBLIC's functions are in the description; with USAGE on the schema it is only
/// one grant away from them, but everybody uses `public`.
const EXCESSIVE: &str = "\
    with owner as ( \
        select c.relowner as oid from pg_class as c \
         where c.relnamespace = $1::text::regnamespace and c.relname = any ($2::text[]) \
    ), relation as ( \
        select c.oid, c.relacl, c.relowner as owner, \
               format('%s %I', case when c.relkind = 'v' then 'view' else 'table' end, c.relname) as name, \
               format('%s.%I', $1::text::regnamespace, c.relname) as qualified, c.relname = any ($3::text[]) as is_view \
          from pg_class as c \
         where c.relnamespace = $1::text::regnamespace and c.relname = any ($2::text[] || $3::text[]) \
        union all \
        select s.oid, s.relacl, s.relowner, format('sequence %I', s.relname), \
               format('sequence %s.%I', $1::text::regnamespace, s.relname), false \
          from pg_class as c \
          join pg_depend as d on d.refobjid = c.oid and d.refclassid = 'pg_class'::regclass and d.deptype in ('a', 'i') \
          join pg_class as s on s.oid = d.objid and d.classid = 'pg_class'::regclass and s.relkind = 'S' \
         where c.relnamespace = $1::text::regnamespace and c.relname = any ($2::text[]) \
    ), privilege as ( \
        select a.grantee, a.privilege_type as privilege, r.name, r.qualified as place \
          from relation as r cross join lateral aclexplode(r.relacl) as a \
         where a.grantee <> r.owner and (not r.is_view or a.grantee = 0 or a.privilege_type <> 'SELECT') \
        union all \
        select a.grantee, format('%s (%I)', a.privilege_type, t.attname), r.name, r.qualified \
          from relation as r \
          join pg_attribute as t on t.attrelid = r.oid and not t.attisdropped \
         cross join lateral aclexplode(t.attacl) as a \
         where a.grantee <> r.owner and (not r.is_view or a.grantee = 0 or a.privilege_type <> 'SELECT') \
        union all \
        select a.grantee, a.privilege_type, 'the schema', 'schema ' || $1::text::regnamespace::text \
          from pg_namespace as n cross join lateral aclexplode(n.nspacl) as a \
         where n.oid = $1::text::regnamespace \
           and case a.privilege_type when 'CREATE' then a.grantee <> n.nspowner and a.grantee not in (select o.oid from owner as o) \
                                     else a.grantee = 0 and n.nspname <> 'public' end \
    ) \
    select format('%s has %s on %s', coalesce('role \"' || r.rolname || '\"', 'PUBLIC'), \
                  string_agg(p.privilege, ', ' order by p.privilege), p.name), \
           format('revoke %s on %s from %s;', \
                  string_agg(p.privilege, ', ' order by p.privilege), p.place, coalesce(quote_ident(r.rolname), 'public')) \
      from privilege as p left join pg_roles as r on r.oid = p.grantee \
     group by p.name, p.place, r.rolname \
     order by 1";

/// Roles that were granted some of the functions $2, and not the one of $4 that stands for the purpose which it, in $3, is for.
/// Functions that only run as part of others are not among them: they run as who calls them, and lend nobody anything.
const AIMLESS: &str = "\
    with purpose as ( \
        select f.name, m.oid as marker \
          from unnest($3::text[], $4::text[]) as f (name, marker) \
          join pg_proc as m on m.pronamespace = $1::text::regnamespace and m.proname = f.marker \
    ) \
    select format('role \"%s\" has EXECUTE on %s, and no purpose that takes it', \
                  r.rolname, string_agg(p.proname, ', ' order by p.proname)), \
           format('revoke EXECUTE on function %s from %I;', \
                  string_agg(format('%s.%I(%s)', $1::text::regnamespace, p.proname, pg_get_function_identity_arguments(p.oid)), \
                             ', ' order by p.proname), r.rolname), \
           r.rolname::text, array_agg(p.proname::text) \
      from pg_proc as p \
     cross join lateral aclexplode(p.proacl) as a \
      join pg_roles as r on r.oid = a.grantee \
     where p.pronamespace = $1::text::regnamespace \
       and p.proname = any ($2::text[]) \
       and a.grantee <> p.proowner \
       and not exists (select from purpose as u where u.name = p.proname and has_function_privilege(r.oid, u.marker, 'execute')) \
     group by r.rolname \
     order by r.rolname";

/// What does not belong to whom the rest belongs to: functions run as their owner. Not whom the schema belongs to: that can
/// be a DBA, or a cloud's own role, who only lets another one create in it.
const OWNERS: &str = "\
    with object as ( \
        select c.relowner as owner, case when c.relkind = 'v' then 'view' else 'table' end as kind, \
               c.relname as name, format('%s.%I', $1::text::regnamespace, c.relname) as qualified \
          from pg_class as c \
         where c.relnamespace = $1::text::regnamespace and c.relname = any ($2::text[] || $3::text[]) \
        union all \
        select p.proowner, 'function', p.proname, \
               format('%s.%I(%s)', $1::text::regnamespace, p.proname, pg_get_function_identity_arguments(p.oid)) \
          from pg_proc as p \
         where p.pronamespace = $1::text::regnamespace and p.proname = any ($4::text[]) \
    ), most as ( \
        select mode() within group (order by o.owner) as owner from object as o \
    ) \
    select format('role \"%s\" owns %s; the rest belongs to role \"%s\"', pg_get_userbyid(o.owner), \
                  string_agg(o.kind || ' ' || o.name, ', ' order by o.kind, o.name), pg_get_userbyid(m.owner)), \
           string_agg(format('alter %s %s owner to %I;', o.kind, o.qualified, pg_get_userbyid(m.owner)), ' ' \
                      order by o.kind, o.name) \
      from object as o cross join most as m \
     where o.owner <> m.owner \
     group by o.owner, m.owner \
     order by 1";

/// Roles that were granted $2, or all the views $6 but one, but not all of $3 and $4, and whether they may read any of $5.
const INCOMPLETE: &str = "\
    with object as ( \
        select p.oid, p.proname as name, p.proacl as acl, p.proowner as owner, true as is_function \
          from pg_proc as p where p.pronamespace = $1::text::regnamespace \
        union all \
        select c.oid, c.relname, c.relacl, c.relowner, false \
          from pg_class as c where c.relnamespace = $1::text::regnamespace and c.relkind = 'v' \
    ), granted as ( \
        select a.grantee, o.name, o.is_function \
          from object as o cross join lateral aclexplode(o.acl) as a \
         where a.grantee <> o.owner \
    ) \
    select r.rolname::text, l.lacking, \
           exists (select from object as o \
                    where not o.is_function and o.name = any ($5::text[]) and has_table_privilege(r.oid, o.oid, 'select')) \
      from (select g.grantee from granted as g where g.name = $2 \
            union \
            select g.grantee from granted as g where not g.is_function and g.name = any ($6::text[]) \
             group by g.grantee having count(distinct g.name) >= cardinality($6::text[]) - 1) as m \
      join pg_roles as r on r.oid = m.grantee \
     cross join lateral ( \
           select array_agg(t.privilege order by t.privilege) as lacking \
             from (select 'USAGE on the schema' as privilege \
                    where not has_schema_privilege(r.oid, $1::text::regnamespace::oid, 'usage') \
                   union all \
                   select 'EXECUTE on ' || o.name from object as o \
                    where o.is_function and o.name = any ($3::text[]) and not has_function_privilege(r.oid, o.oid, 'execute') \
                   union all \
                   select 'SELECT on ' || o.name from object as o \
                    where not o.is_function and o.name = any ($4::text[]) and not has_table_privilege(r.oid, o.oid, 'select') \
                  ) as t) as l \
     where l.lacking is not null \
     order by 1";
