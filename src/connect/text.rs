//! Takes connection strings apart: URLs and `key=value` lists, as libpq reads them.
//!
//! tokio-postgres has a parser of its own, but it refuses what it does not know (`sslmode=verify-full`, `sslrootcert`…)
//! and fills in ports before the environment could. Errors quote no value: any of them may be a password.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::str::Chars;

use percent_encoding::percent_decode_str;

/// Settings by their libpq names.
pub(super) type Parameters = BTreeMap<String, String>;

pub(super) fn parse(text: &str) -> Result<Parameters, String> {
    for scheme in ["postgres://", "postgresql://"] {
        if let Some(rest) = text.strip_prefix(scheme) {
            return url(rest);
        }
    }
    key_values(text)
}

/// Parameters whose values may well have an `@`.
const WITH_AT: [&str; 11] = [
    "application_name",
    "dbname",
    "fallback_application_name",
    "host",
    "options",
    "passfile",
    "password",
    "sslcert",
    "sslkey",
    "sslrootcert",
    "user",
];

/// `user:password@host:port,host:port/database?key=value&key=value`, everything optional.
fn url(text: &str) -> Result<Parameters, String> {
    let mut parameters = Parameters::new();
    let (text, query) = match text.split_once('?') {
        // Not if it is part of a password that should have been encoded: then there is no telling.
        Some((_, query)) if hides_host(query) => {
            return Err(
                "a `?` in a user name or password has to be written as %3F, and an `@` in a parameter as %40"
                    .to_string(),
            );
        }
        Some((text, query)) => (text, query),
        None => (text, ""),
    };
    let (authority, database) = text.split_once('/').unwrap_or((text, ""));
    // It may be the end of a password, and what comes before the `/` its beginning, taken for a host and port.
    if database.contains('@') {
        return Err(
            "a `/` in a user name or password has to be written as %2F, and an `@` in the name of a database as %40"
                .to_string(),
        );
    }
    let hosts = match authority.rsplit_once('@') {
        None => authority,
        Some((credentials, hosts)) => {
            let (user, password) = match credentials.split_once(':') {
                Some((user, password)) => (user, Some(password)),
                None => (credentials, None),
            };
            insert_if_any(&mut parameters, "user", decode("user", user)?);
            if let Some(password) = password {
                insert_if_any(&mut parameters, "password", decode("password", password)?);
            }
            hosts
        }
    };
    if !hosts.is_empty() {
        let mut names = Vec::new();
        let mut ports = Vec::new();
        for host in hosts.split(',') {
            let (name, port) = host_and_port(host)?;
            names.push(decode("host", name)?);
            ports.push(decode("port", port)?);
        }
        insert_if_any(&mut parameters, "host", names.join(","));
        if ports.iter().any(|port| !port.is_empty()) {
            parameters.insert("port".to_string(), ports.join(","));
        }
    }
    insert_if_any(&mut parameters, "dbname", decode("database", database)?);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            return Err("a parameter of the URL has no `=`".to_string());
        };
        let key = decode("name of a parameter", key)?;
        let value = decode(&key, value)?;
        // As libpq and other drivers take it.
        match (key.as_str(), value.as_str()) {
            ("ssl", "true") => parameters.insert("sslmode".to_string(), "require".to_string()),
            _ => parameters.insert(key, value),
        };
    }
    Ok(parameters)
}

/// Whether what comes after the first `?` may be the rest of a password and the host: there is an `@` elsewhere than in a
/// parameter that may well have one.
fn hides_host(query: &str) -> bool {
    let may_have_one = |pair: &str| pair.split_once('=').is_some_and(|(key, _)| WITH_AT.contains(&key));
    query.split('&').any(|pair| pair.contains('@') && !may_have_one(pair))
}

fn insert_if_any(parameters: &mut Parameters, key: &str, value: String) {
    if !value.is_empty() {
        parameters.insert(key.to_string(), value);
    }
}

/// IPv6 addresses are in brackets.
fn host_and_port(text: &str) -> Result<(&str, &str), String> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(text) => text
            .split_once(']')
            .ok_or("an IPv6 address lacks its closing bracket")?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    match rest.strip_prefix(':') {
        Some(port) => Ok((host, port)),
        None if rest.is_empty() => Ok((host, "")),
        None => Err("there is something between an IPv6 address and its port".to_string()),
    }
}

fn decode(what: &str, text: &str) -> Result<String, String> {
    percent_decode_str(text)
        .decode_utf8()
        .map(|text| text.into_owned())
        .map_err(|_| format!("the {what} is not UTF-8"))
}

/// `key=value key = 'va lue'`; `\` escapes.
fn key_values(text: &str) -> Result<Parameters, String> {
    let mut parameters = Parameters::new();
    let mut rest = text.chars().peekable();
    loop {
        skip_spaces(&mut rest);
        let mut key = String::new();
        while let Some(next) = rest.next_if(|next| *next != '=' && !next.is_whitespace()) {
            key.push(next);
        }
        skip_spaces(&mut rest);
        match (rest.next(), key.is_empty()) {
            (None, true) => return Ok(parameters),
            (Some('='), false) => {}
            _ => {
                return Err(
                    "neither a URL that begins with postgres:// nor a list of key=value (values with spaces need quotes)"
                        .to_string(),
                );
            }
        }
        skip_spaces(&mut rest);
        let value = value(&mut rest)?;
        parameters.insert(key, value);
    }
}

fn skip_spaces(rest: &mut Peekable<Chars<'_>>) {
    while rest.next_if(|next| next.is_whitespace()).is_some() {}
}

fn value(rest: &mut Peekable<Chars<'_>>) -> Result<String, String> {
    let quoted = rest.next_if_eq(&'\'').is_some();
    let mut value = String::new();
    loop {
        match rest.next_if(|next| quoted || !next.is_whitespace()) {
            Some('\'') if quoted => return Ok(value),
            Some('\\') => value.extend(rest.next()),
            Some(next) => value.push(next),
            None if quoted => return Err("a quoted value lacks its closing quote".to_string()),
            None => return Ok(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Vec<(String, String)> {
        parse(text).expect(text).into_iter().collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected
            .iter()
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .collect()
    }

    #[test]
    fn urls_are_taken_apart() {
        assert_eq!(
            parsed(
                "postgres://us%40er:p%3Aw%2F@db.example:5433/my%20db?sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem"
            ),
            pairs(&[
                ("dbname", "my db"),
                ("host", "db.example"),
                ("password", "p:w/"),
                ("port", "5433"),
                ("sslmode", "verify-full"),
                ("sslrootcert", "/etc/ca.pem"),
                ("user", "us@er"),
            ])
        );
        assert_eq!(
            parsed("postgresql://a,b:2,[::1]:3/?target_session_attrs=read-write"),
            pairs(&[
                ("host", "a,b,::1"),
                ("port", ",2,3"),
                ("target_session_attrs", "read-write")
            ])
        );
        assert_eq!(
            parsed("postgres://%2Frun%2Fpg/d?user=u"),
            pairs(&[("dbname", "d"), ("host", "/run/pg"), ("user", "u")])
        );
        assert_eq!(parsed("postgres:///d?host=/run/pg&port=7").len(), 3);
        for parameter in [
            "user=u@server",
            "application_name=me@corp",
            "password=p@ss",
            "sslrootcert=/home/me@corp/ca.pem",
        ] {
            assert_eq!(parsed(&format!("postgres://h/d?{parameter}")).len(), 3, "{parameter}");
        }
        assert_eq!(
            parsed("postgres://h/a%40b%2Fc"),
            pairs(&[("dbname", "a@b/c"), ("host", "h")])
        );
        assert_eq!(parsed("postgres://"), []);
        // A later @ belongs to the host, an earlier one to the user, as Azure writes them.
        assert_eq!(
            parsed("postgres://u@server:pw@h")[2],
            ("user".to_string(), "u@server".to_string())
        );
    }

    #[test]
    fn lists_are_taken_apart() {
        assert_eq!(
            parsed(r" host=h  port = 5 password='it\'s \\ me' dbname=a\ b options='' "),
            pairs(&[
                ("dbname", "a b"),
                ("host", "h"),
                ("options", ""),
                ("password", r"it's \ me"),
                ("port", "5")
            ])
        );
        assert_eq!(parsed(""), []);
    }

    #[test]
    fn what_makes_no_sense_is_refused_without_quoting_it() {
        for text in [
            "hunter2",
            "password=abc hunter2",
            "password='hunter2",
            "=hunter2",
            "postgres://u:hunter2?@h",
            "postgres://u:1?hunter2=1@h/d",
            "postgres://u@server:1?hunter2=1@h/d",
            "postgres://u:1/2?hunter2=1@h/d",
            "postgres://u:1?hunter2=1&a=2@h/d",
            "postgres://u:p@[::1/hunter2",
            "postgres://u:12345/hunter2@h/d",
            "postgres://u:p@server:1/hunter2@h/d",
            "postgres://hunter2/1@h",
            "postgres://h/d?hunter2",
            "postgres://%ff:hunter2@h",
        ] {
            let error = parse(text).expect_err(text);
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
