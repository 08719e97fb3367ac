//! The report: Markdown and charts, from the results there are.

mod canvas;
mod chart;
mod section;
mod summary;
mod text;
mod view;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use self::section::Picture;
use self::view::View;
use crate::record::{self, Merged, Run};
use crate::workloads::Name;

pub use self::text::number;

const FILE: &str = "README.md";

const HOW_TO_READ: &str = "\
Figures are medians over repetitions, with the range in parentheses where there were several. *Ratio* is duroxide-postgres
divided by the better of duroxide-pg and duroxide-pg-opt, measured in the same run: for rates more than 1x is better, for
times and costs less. *own* is a candidate's figure divided by its own without the backlog. All candidates ran interleaved
on one server, each measurement on a fresh schema after a checkpoint; what was not measured is shown as –.

The SQLite provider is a point of reference, not a rival: one process, one file, in WAL mode with `synchronous = NORMAL`, so
that its commits, unlike everybody else's, are not flushed to disk before they are reported.
";

fn place(run: &Run) -> String {
    let mut rows = vec![
        ("date".to_string(), run.date.clone()),
        ("commit of duroxide-postgres".to_string(), run.commit.clone()),
        (
            "machine".to_string(),
            format!("{} cores, {:.0} GiB, {}", run.cores, run.memory_gb, run.cpu),
        ),
        ("system".to_string(), run.system.clone()),
        ("server".to_string(), run.server.clone()),
    ];
    let settings: Vec<String> = run
        .settings
        .iter()
        .map(|(name, value)| format!("`{name} = {value}`"))
        .collect();
    rows.push(("settings".to_string(), settings.join(", ")));
    let versions: Vec<String> = run
        .versions
        .iter()
        .map(|(name, version)| format!("{name} {version}"))
        .collect();
    rows.push(("versions".to_string(), versions.join(", ")));
    rows.push((
        "connections".to_string(),
        format!("at most {} for each PostgreSQL provider", run.pool_size),
    ));
    let duration = match run.repetitions {
        _ if run.smoke => "a smoke test: a second or less for each point, once".to_string(),
        1 => format!("{} s for a point of *Turns*, 1 repetition", run.seconds),
        count => format!("{} s for a point of *Turns*, up to {count} repetitions", run.seconds),
    };
    rows.push(("duration".to_string(), duration));
    let mut text = "| | |\n| --- | --- |\n".to_string();
    for (name, value) in rows {
        text.push_str(&format!("| {name} | {value} |\n"));
    }
    text
}

/// Errors of ours, so that nobody overlooks them.
fn own_errors(merged: &Merged) -> String {
    let mut text = String::new();
    for one in &merged.measurements {
        if one.candidate.is_ours() && one.outcome.errors > 0 {
            let first = one.outcome.error.as_deref().map(text::code).unwrap_or_default();
            let errors = one.outcome.errors;
            text.push_str(&format!(
                "> - {}, {}: errors: {errors}, the first: {first}\n",
                one.workload, one.point
            ));
        }
    }
    match text.is_empty() {
        true => text,
        false => format!("> [!CAUTION]\n> **duroxide-postgres had errors:**\n>\n{text}\n"),
    }
}

fn markdown(merged: &Merged) -> (String, Vec<Picture>) {
    let mut text = "# duroxide-postgres beside its peers\n\n".to_string();
    if merged.runs.iter().any(|run| run.smoke) {
        text.push_str("> [!WARNING]\n> A smoke test: it shows that everything runs. Its figures mean nothing.\n\n");
    }
    text.push_str("Written by `scripts/compare`; `scripts/compare --help` says how to repeat it.\n\n");
    text.push_str(&own_errors(merged));
    text.push_str(&summary::table(merged));
    text.push_str(&format!("\n{HOW_TO_READ}\n## Where and when\n\n"));
    let several_runs = merged.runs.len() > 1;
    for run in &merged.runs {
        if several_runs {
            let of_run = |name: &&Name| merged.run_of(name.as_str()).is_some_and(|other| other.id == run.id);
            let names: Vec<&str> = Name::ALL.iter().filter(of_run).map(|name| name.as_str()).collect();
            text.push_str(&format!("Workloads {}:\n\n", names.join(", ")));
        }
        text.push_str(&place(run));
        text.push('\n');
    }
    let mut pictures = Vec::new();
    for name in Name::ALL {
        let view = View::new(merged, name.as_str());
        if let Some((section, own)) = section::section(name, &view, merged.run_of(name.as_str()), several_runs) {
            text.push_str(&section);
            text.push('\n');
            pictures.extend(own);
        }
    }
    (text.trim_end().to_string() + "\n", pictures)
}

/// Writes the report beside the results; where it is.
pub fn render(folder: &Path) -> Result<PathBuf> {
    let merged = Merged::new(record::read(folder)?);
    let (text, pictures) = markdown(&merged);
    for entry in fs::read_dir(folder)?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "svg") {
            fs::remove_file(&path).with_context(|| format!("cannot replace {}", path.display()))?;
        }
    }
    for Picture { file, svg } in pictures {
        let path = folder.join(file);
        fs::write(&path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let path = folder.join(FILE);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidates::Candidate;
    use crate::record::Line;
    use crate::record::tests::{measurement, run};

    fn lines() -> Vec<Line> {
        let mut failed = measurement("one", "turns", "16 callers", Candidate::Pg, 200.0);
        failed.outcome.errors = 3;
        failed.outcome.error = Some("dead | lock".to_string());
        vec![
            Line::Run(run("one")),
            Line::Measurement(measurement("one", "turns", "1 caller", Candidate::Pg, 300.0)),
            Line::Measurement(measurement("one", "turns", "1 caller", Candidate::Postgres, 900.0)),
            Line::Measurement(failed),
        ]
    }

    #[test]
    fn a_report_has_a_summary_the_place_and_a_section() {
        let (text, pictures) = markdown(&Merged::new(lines()));
        for part in [
            "| workload |",
            "3.00x",
            "## Where and when",
            "fsync = on",
            "## Turns",
            "errors: 3",
            "`dead | lock`",
        ] {
            assert!(text.contains(part), "{part} is missing in:\n{text}");
        }
        assert!(!text.contains("CAUTION"));
        assert!(!text.contains("smoke"));
        assert_eq!(pictures.first().map(|picture| picture.file.as_str()), Some("turns.svg"));
    }

    #[test]
    fn errors_of_ours_are_at_the_head() {
        let mut lines = lines();
        let mut own = measurement("one", "idle", "1 node", Candidate::Postgres, 1.0);
        own.outcome.errors = 1;
        own.outcome.error = Some("broken".to_string());
        lines.push(Line::Measurement(own));
        let (text, _) = markdown(&Merged::new(lines));
        let head = text.split("| workload |").next().unwrap_or_default();
        assert!(head.contains("[!CAUTION]") && head.contains("`broken`"), "{head}");
    }

    #[test]
    fn partial_runs_are_named_by_what_they_measured() {
        let mut lines = lines();
        lines.push(Line::Run(run("two")));
        lines.push(Line::Measurement(measurement(
            "two",
            "idle",
            "1 node",
            Candidate::Postgres,
            1.0,
        )));
        let (text, _) = markdown(&Merged::new(lines));
        assert!(text.contains("Workloads turns:") && text.contains("Workloads idle:"));
    }

    #[test]
    fn files_are_written_and_old_pictures_removed() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let mut results = record::Results::open(folder.path(), true)?;
        for line in lines() {
            results.append(&line)?;
        }
        fs::write(folder.path().join("old.svg"), "")?;
        render(folder.path())?;
        assert!(folder.path().join("README.md").exists());
        assert!(folder.path().join("turns.svg").exists());
        assert!(!folder.path().join("old.svg").exists());
        Ok(())
    }
}
