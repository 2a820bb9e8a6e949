//! The command line as scripts see it: output, exit status, what goes where.

use std::process::{Command, Output};

use serde_json::Value;

fn periscope(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_periscope")).args(args).env("NO_COLOR", "1").output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(args: &[&str]) -> Value {
    let output = periscope(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    let out = text(&output.stdout);
    assert_eq!(out.lines().count(), 1, "one object on one line");
    serde_json::from_str(&out).unwrap()
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn run_prints_one_object_with_the_documented_keys() {
    let outcome = json(&[
        "run",
        "paged_attention",
        "--case",
        "small2",
        "--platform",
        "sim:a5",
        "--runs",
        "2",
        "--seed",
        "3",
        "--json",
    ]);
    let mut found = keys(&outcome);
    found.sort_unstable();
    let mut documented = [
        "workload",
        "case",
        "platform",
        "runtime",
        "residency",
        "seed",
        "tasks",
        "edges",
        "setup_bytes",
        "runs",
        "summary_us",
        "views",
        "check",
    ];
    documented.sort_unstable();
    assert_eq!(found, documented);
    assert_eq!(outcome["workload"], "paged_attention");
    assert_eq!(outcome["runtime"], "host_build_graph");
    assert_eq!(outcome["residency"], "resident");
    assert_eq!(outcome["seed"], 3);
    assert_eq!((outcome["tasks"].as_u64(), outcome["edges"].as_u64()), (Some(16), Some(19)));
    let runs = outcome["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2);
    for phase in ["bind", "orchestrate", "launch", "execute", "collect", "total"] {
        assert!(runs[0]["phases_us"][phase].as_f64().unwrap() >= 0.0);
        for part in ["min", "median", "max"] {
            assert!(outcome["summary_us"][phase][part].is_number(), "{phase} {part}");
        }
    }
    // Cold: the table (256 / 16 columns) and one length are copied once. Warm: nothing.
    assert_eq!(runs[0]["bytes"]["d2h"], 16 * 4 + 4);
    assert_eq!((&runs[1]["bytes"]["d2h"], &runs[1]["bytes"]["h2d"]), (&Value::from(0), &Value::from(0)));
    for count in ["established", "maps", "fills", "refreshes", "pushes", "windows", "releases"] {
        assert!(runs[0]["views"][count].is_u64(), "{count}");
    }
    let views = outcome["views"].as_array().unwrap();
    assert_eq!(views.len(), 2);
    assert_eq!(views[0]["mechanism"], "mirrored");
    assert_eq!(views[0]["reason"], "no map path");
    assert_eq!(outcome["check"]["pass"], true);
    assert_eq!(outcome["check"]["rtol"], 1e-3);
}

#[test]
fn every_workload_runs_on_every_platform() {
    let listing = json(&["list", "--json"]);
    for workload in listing["workloads"].as_array().unwrap() {
        let name = workload["name"].as_str().unwrap();
        let case = if name == "paged_attention" { "small1" } else { "default" };
        for platform in listing["platforms"].as_array().unwrap() {
            let uri = platform["uri"].as_str().unwrap();
            for residency in ["staged", "mixed", "resident"] {
                let args =
                    ["run", name, "--case", case, "--platform", uri, "--residency", residency, "--runs", "1", "--json"];
                let outcome = json(&args);
                assert_eq!(outcome["check"]["pass"], true, "{args:?}");
            }
        }
    }
}

#[test]
fn tables_are_for_people_and_standard_output_has_no_escape() {
    let output = periscope(&["run", "vector_add"]);
    assert!(output.status.success());
    let out = text(&output.stdout);
    assert!(out.contains("PASS") && out.contains("No host views"), "{out}");
    assert!(!out.contains('\u{1b}'));
    assert!(out.lines().all(|line| line == line.trim_end()), "no trailing spaces");
    for command in [&["list"][..], &["doctor"]] {
        let output = periscope(command);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("sim:windowed"));
    }
}

#[test]
fn wrong_use_exits_with_2_and_says_what_there_is() {
    let cases: [(&[&str], &str); 8] = [
        (&["run", "nonsense"], "paged_attention"),
        (&["run", "paged_attention", "--case", "huge"], "case1"),
        (&["run", "paged_attention", "--platform", "sim:a9"], "sim:a2a3"),
        (&["run", "paged_attention", "--platform", "gpu"], "sim"),
        (&["run", "paged_attention", "--residency", "remote"], "mixed"),
        (&["run", "paged_attention", "--runs", "0"], "0"),
        (&["run"], "WORKLOAD"),
        (&["walk"], "walk"),
    ];
    for (args, hint) in cases {
        let output = periscope(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
        assert!(text(&output.stderr).contains(hint), "{args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn help_teaches() {
    let output = periscope(&["--help"]);
    assert!(output.status.success());
    let help = text(&output.stdout);
    for word in ["list", "doctor", "run", "Exit status", "Examples"] {
        assert!(help.contains(word), "{word}");
    }
}
