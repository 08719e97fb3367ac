//! What Cargo.toml and README say about versions is true.

use semver::Version;
use serde_json::Value;

use crate::support::{metadata, source_of};

fn readme() -> String {
    std::fs::read_to_string(source_of("duroxide-postgres").join("README.md")).expect("README.md")
}

fn package<'a>(metadata: &'a Value, name: &str) -> &'a Value {
    metadata["packages"]
        .as_array()
        .expect("packages")
        .iter()
        .find(|package| package["name"] == name)
        .expect(name)
}

/// "1.92" as a version.
fn version(text: &str) -> Version {
    let parts: Vec<u64> = text.split('.').map(|part| part.parse().expect("a number")).collect();
    Version::new(parts[0], parts[1], parts.get(2).copied().unwrap_or(0))
}

/// No dependency that users compile needs a later Rust than the one stated.
#[test]
fn the_stated_rust_version_is_enough_for_every_dependency() {
    let metadata = metadata();
    let own = package(&metadata, "duroxide-postgres");
    let stated = own["rust_version"].as_str().expect("rust-version");
    assert!(
        readme().contains(&format!("Rust {stated}")),
        "README.md does not say Rust {stated}"
    );

    // Everything reachable by normal dependencies.
    let nodes = metadata["resolve"]["nodes"].as_array().expect("nodes");
    let mut reachable = vec![own["id"].as_str().expect("id")];
    let mut next = 0;
    while let Some(id) = reachable.get(next).copied() {
        next += 1;
        let node = nodes.iter().find(|node| node["id"] == id).expect("a node");
        for dependency in node["deps"].as_array().expect("deps") {
            let normal = dependency["dep_kinds"]
                .as_array()
                .expect("kinds")
                .iter()
                .any(|kind| kind["kind"] != "dev" && kind["target"].is_null());
            let id = dependency["pkg"].as_str().expect("id");
            if normal && !reachable.contains(&id) {
                reachable.push(id);
            }
        }
    }
    assert!(reachable.len() > 20);
    for found in metadata["packages"].as_array().expect("packages") {
        if let Some(needs) = found["rust_version"].as_str()
            && reachable.iter().any(|id| found["id"] == *id)
        {
            assert!(
                version(needs) <= version(stated),
                "{} needs Rust {needs}",
                found["name"]
            );
        }
    }
}

/// The tests run with a duroxide that Cargo.toml allows and README names.
#[test]
fn the_stated_duroxide_version_is_the_one_tested() {
    let metadata = metadata();
    let tested = package(&metadata, "duroxide")["version"].as_str().expect("version");
    assert!(
        readme().contains(&format!("duroxide {tested}")),
        "README.md does not say duroxide {tested}"
    );
    let required = package(&metadata, "duroxide-postgres")["dependencies"]
        .as_array()
        .expect("dependencies")
        .iter()
        .find(|dependency| dependency["name"] == "duroxide")
        .expect("duroxide")["req"]
        .as_str()
        .expect("req");
    assert_eq!(
        required,
        format!("^{tested}"),
        "the oldest version allowed is the one tested"
    );
}
