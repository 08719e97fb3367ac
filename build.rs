//! Lists the functions and views under `sql/` for the deployer, so that the list cannot differ from the files.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=migrations");
    println!("cargo::rerun-if-changed=sql");

    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?);
    let mut files = Vec::new();
    for entry in fs::read_dir(root.join("sql"))? {
        let area = entry?.path();
        if area.is_dir() {
            for file in fs::read_dir(area)? {
                files.push(file?.path());
            }
        }
    }
    files.retain(|file| file.extension().is_some_and(|extension| extension == "sql"));
    files.sort();

    let mut list = String::from("pub(crate) const FUNCTIONS: &[(&str, &str)] = &[\n");
    for file in &files {
        list.push_str(&format!("    ({:?}, include_str!({file:?})),\n", name(file)));
    }
    list.push_str("];\n");

    files.push(root.join("sql/permissions.sql"));
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    for file in &files {
        for byte in fs::read(file)? {
            digest = (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    list.push_str(&format!(
        "pub(crate) const FUNCTIONS_DIGEST: &str = \"{digest:016x}\";\n"
    ));

    let out = PathBuf::from(env::var("OUT_DIR").map_err(io::Error::other)?);
    fs::write(out.join("functions.rs"), list)
}

/// Folder and name: `area/function`.
fn name(file: &Path) -> String {
    let part = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let area = file.parent().map(part).unwrap_or_default();
    format!("{area}/{}", part(file))
}
