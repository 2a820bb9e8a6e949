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

/// Every Rust file of the workspace.
fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn every_test_named_after_a_field_case_is_listed_and_every_listed_one_exists() {
    let page = fs::read_to_string(root().join("docs/field-cases.md")).unwrap();
    let names = |text: &str, before: &str| -> BTreeSet<String> {
        let start = format!("{before}field_");
        let parts = text.split(&start).skip(1);
        let name = |part: &str| part.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap().to_owned();
        parts.map(name).collect()
    };
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    // Written so that this file does not look like a test of a case itself.
    let prefix = ["fn", " "].concat();
    let tests: BTreeSet<String> = files.iter().flat_map(|file| names(file, &prefix)).collect();
    assert_eq!(names(&page, "`"), tests);
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
