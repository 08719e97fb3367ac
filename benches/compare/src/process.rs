//! CPU time and memory of processes on this machine, from `/proc`.
//!
//! Elsewhere than on Linux, or when the server runs on another machine or in a container, the figures are simply
//! missing.

use std::fs;
use std::time::Duration;

/// Clock ticks a second in `/proc/<pid>/stat`. It is `sysconf(_SC_CLK_TCK)`, which is 100 on every Linux there is.
const TICKS_PER_SECOND: f64 = 100.0;

/// What `/proc/<pid>/stat` says about one process.
struct Stat {
    name: String,
    parent: u32,
    /// User and system time.
    own_ticks: u64,
    /// The same of children that have ended and were waited for.
    ended_children_ticks: u64,
}

/// The name is in parentheses and may itself contain blanks and parentheses, so fields count from the last one.
fn parse_stat(text: &str) -> Option<Stat> {
    let open = text.find('(')?;
    let close = text.rfind(')')?;
    let fields: Vec<&str> = text.get(close + 1..)?.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Stat {
        name: text.get(open + 1..close)?.to_string(),
        parent: number(1)?.try_into().ok()?,
        own_ticks: number(11)? + number(12)?,
        ended_children_ticks: number(13)? + number(14)?,
    })
}

fn stat(process: &str) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

fn from_ticks(ticks: u64) -> Duration {
    Duration::from_secs_f64(ticks as f64 / TICKS_PER_SECOND)
}

/// CPU time this process has used.
pub fn own_cpu() -> Option<Duration> {
    Some(from_ticks(stat("self")?.own_ticks))
}

/// Memory of this process that is resident now, in bytes.
pub fn own_resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

/// All processes of a PostgreSQL server on this machine.
#[derive(Debug, Clone, Copy)]
pub struct ServerProcesses {
    postmaster: u32,
}

impl ServerProcesses {
    /// Finds them from the process id of one backend. `None` if that is not a backend here: the id belongs to another
    /// machine or container, so it names either nothing or a stranger.
    pub fn of_backend(backend: u32) -> Option<Self> {
        let of_backend = stat(&backend.to_string())?;
        let of_postmaster = stat(&of_backend.parent.to_string())?;
        let both = [&of_backend.name, &of_postmaster.name];
        both.iter()
            .all(|name| name.as_str() == "postgres" || name.as_str() == "postmaster")
            .then_some(Self {
                postmaster: of_backend.parent,
            })
    }

    /// CPU time that all of them have used together. Never falls: a backend that ends adds its time to what the
    /// postmaster knows of its ended children.
    pub fn cpu(self) -> Option<Duration> {
        let postmaster = stat(&self.postmaster.to_string())?;
        let mut ticks = postmaster.own_ticks + postmaster.ended_children_ticks;
        for entry in fs::read_dir("/proc").ok()?.flatten() {
            let name = entry.file_name();
            let Some(name) = name
                .to_str()
                .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
            else {
                continue;
            };
            if let Some(child) = stat(name).filter(|child| child.parent == self.postmaster) {
                ticks += child.own_ticks;
            }
        }
        Some(from_ticks(ticks))
    }
}

/// CPU times at one moment.
#[derive(Debug, Clone, Copy)]
pub struct CpuTimes {
    client: Option<Duration>,
    server: Option<Duration>,
}

impl CpuTimes {
    pub fn now(server: Option<ServerProcesses>) -> Self {
        Self {
            client: own_cpu(),
            server: server.and_then(ServerProcesses::cpu),
        }
    }

    /// Milliseconds of this process since `earlier`.
    pub fn client_ms_since(&self, earlier: &Self) -> Option<f64> {
        Some(self.client?.saturating_sub(earlier.client?).as_secs_f64() * 1000.0)
    }

    /// Milliseconds of the server since `earlier`.
    pub fn server_ms_since(&self, earlier: &Self) -> Option<f64> {
        Some(self.server?.saturating_sub(earlier.server?).as_secs_f64() * 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_parentheses_does_not_shift_the_fields() {
        let text = "42 (a (b) c) S 7 42 42 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 100 200 300";
        let stat = parse_stat(text).expect("a well-formed line");
        assert_eq!(stat.name, "a (b) c");
        assert_eq!(stat.parent, 7);
        assert_eq!(stat.own_ticks, 30);
        assert_eq!(stat.ended_children_ticks, 70);
        assert!(parse_stat("nonsense").is_none());
    }
}
