//! Documents that would otherwise go out of date in silence.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn crates() -> BTreeSet<String> {
    fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn architecture_names_every_crate_and_only_those() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let described: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("**`"))
        .filter_map(|line| line.split_once('`'))
        .map(|(name, _)| name.to_owned())
        .collect();
    assert_eq!(described, crates());
}

/// The edges that ARCHITECTURE.md draws. A new one is a decision: change both.
const EDGES: &[(&str, &[&str])] = &[
    ("periscope-core", &[]),
    ("periscope-hal", &["periscope-core"]),
    ("periscope-sim", &["periscope-core", "periscope-hal"]),
    ("periscope-cts", &["periscope-core", "periscope-hal", "periscope-sim"]),
    ("periscope-memory", &["periscope-core", "periscope-hal"]),
    ("periscope", &["periscope-core", "periscope-hal", "periscope-memory", "periscope-sim"]),
    ("periscope-workloads", &["periscope"]),
    ("periscope-cli", &["periscope", "periscope-workloads"]),
];

#[test]
fn crates_depend_on_each_other_as_drawn() {
    for name in crates() {
        let manifest = fs::read_to_string(root().join("crates").join(&name).join("Cargo.toml")).unwrap();
        // What users of the crate get: the test-only dependencies do not count.
        let (_, after) = manifest.split_once("[dependencies]").unwrap();
        let dependencies = after.split("\n[").next().unwrap();
        let found: BTreeSet<&str> = dependencies
            .lines()
            .filter_map(|line| line.split(['.', ' ', '=']).next())
            .filter(|dependency| dependency.starts_with("periscope"))
            .collect();
        let drawn =
            EDGES.iter().find(|(crate_name, _)| *crate_name == name).unwrap_or_else(|| panic!("{name} is not drawn"));
        assert_eq!(found, drawn.1.iter().copied().collect(), "{name}");
    }
}
