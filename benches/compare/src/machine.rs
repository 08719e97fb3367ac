//! What a reader has to know about the place where it was measured.

use std::fs;
use std::process::Command;
use std::thread::available_parallelism;

use anyhow::Result;

use crate::candidates::POOL_SIZE;
use crate::cli::RunArgs;
use crate::record::Run;
use crate::server::Server;

/// Resolved versions of all dependencies, the peers included.
const LOCK_FILE: &str = include_str!("../../../Cargo.lock");
const PACKAGES: [&str; 5] = [
    "duroxide-postgres",
    "duroxide-pg",
    "duroxide-pg-opt",
    "duroxide",
    "tokio-postgres",
];
/// What this crate is made of: a change elsewhere does not change what is measured.
const SOURCES: [&str; 5] = ["src", "sql", "migrations", "Cargo.toml", "Cargo.lock"];

fn version_in(lock_file: &str, package: &str) -> Option<String> {
    let (_, after) = lock_file.split_once(&format!("\nname = \"{package}\"\nversion = \""))?;
    Some(after.split_once('"')?.0.to_string())
}

/// The value of `key` in a file of the shape of `/proc/cpuinfo` or `/etc/os-release`.
fn value_in(text: &str, key: &str, separator: char) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(separator)?;
        (name.trim() == key).then(|| value.trim().trim_matches('"').to_string())
    })
}

fn file(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(["-C", concat!(env!("CARGO_MANIFEST_DIR"), "/../..")])
        .args(arguments)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

fn commit() -> String {
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_string();
    };
    let changes = git(&[&["status", "--porcelain", "--"], &SOURCES[..]].concat());
    match changes {
        Some(changes) if changes.is_empty() => commit,
        _ => format!("{commit} with changes"),
    }
}

fn system() -> String {
    let name = value_in(&file("/etc/os-release"), "PRETTY_NAME", '=');
    let name = name.unwrap_or_else(|| std::env::consts::OS.to_string());
    let kernel = file("/proc/sys/kernel/osrelease");
    match kernel.trim() {
        "" => name,
        kernel => format!("{name}, kernel {kernel}"),
    }
}

pub async fn describe(args: &RunArgs, server: &Server) -> Result<Run> {
    let memory = value_in(&file("/proc/meminfo"), "MemTotal", ':');
    let kilobytes = memory.and_then(|memory| memory.trim_end_matches("kB").trim().parse::<f64>().ok());
    Ok(Run {
        id: uuid::Uuid::new_v4().simple().to_string(),
        date: server.date().await?,
        commit: commit(),
        smoke: args.smoke,
        repetitions: args.repetitions,
        seconds: args.seconds,
        limit_seconds: args.limit,
        pool_size: POOL_SIZE,
        cpu: value_in(&file("/proc/cpuinfo"), "model name", ':').unwrap_or_else(|| "unknown".to_string()),
        cores: available_parallelism().map_or(0, usize::from),
        memory_gb: kilobytes.unwrap_or(0.0) / 1024.0 / 1024.0,
        system: system(),
        server: server.version().await?,
        settings: server.settings().await?,
        versions: PACKAGES
            .iter()
            .filter_map(|package| Some((package.to_string(), version_in(LOCK_FILE, package)?)))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_file_names_all_versions() {
        for package in PACKAGES {
            assert!(version_in(LOCK_FILE, package).is_some(), "{package}");
        }
        assert_eq!(version_in(LOCK_FILE, "duroxide-pg").as_deref(), Some("0.1.38"));
        assert_eq!(version_in(LOCK_FILE, "no-such-package"), None);
    }

    #[test]
    fn values_are_found_with_either_separator() {
        assert_eq!(
            value_in("a : 1\nmodel name\t: X 2", "model name", ':').as_deref(),
            Some("X 2")
        );
        assert_eq!(value_in("NAME=\"An OS\"", "NAME", '=').as_deref(), Some("An OS"));
        assert_eq!(value_in("", "NAME", '='), None);
    }
}
