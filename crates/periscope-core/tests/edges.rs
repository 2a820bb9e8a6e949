//! Text in, edges out.
//!
//! One task per line: a name, then its arguments (`in a`, `out a[0..8]`, `inout a[2..4, 0..8]`; objects are bytes, 16 rows
//! of 16, and a view is some bytes of all or some columns of some rows), then explicit edges (`after x y`). `manual {`,
//! `unchecked {` and `}` on a line of their own are scopes. The edges come out sorted, `>j` and `j>` for inferred joins.

use std::collections::HashMap;

use periscope_core::graph::{EntryWrites, GraphBuilder, GraphLimits, ScopeKind, SubmitError};
use periscope_core::image::{Image, TASK_INFERRED_JOIN};
use periscope_core::{
    Access, CoreKind, DType, Direction, KernelId, KernelParam, KernelSignature, ObjectRegion, Region, TaskDesc, TaskId,
};

#[derive(Debug)]
struct Outcome {
    image: Image,
    names: HashMap<TaskId, String>,
    refused: Vec<(String, SubmitError)>,
}

fn parse_region(text: &str) -> Region {
    let array = Region::contiguous(DType::U8, &[16, 16]).expect("small");
    let range = |text: &str| {
        let (start, end) = text.trim().split_once("..").expect("a range");
        start.parse().expect("a number")..end.parse().expect("a number")
    };
    match text.strip_suffix(']').and_then(|text| text.split_once('[')) {
        None => array,
        Some((_, view)) => match view.split_once(',') {
            None => array.reshape(&[256]).and_then(|bytes| bytes.slice(0, range(view))).expect("inside"),
            Some((rows, columns)) => {
                array.slice(0, range(rows)).and_then(|rows| rows.slice(1, range(columns))).expect("inside")
            }
        },
    }
}

fn run(program: &str) -> Outcome {
    // One kernel per list of directions that occurs.
    let mut signatures: Vec<KernelSignature> = Vec::new();
    let mut lines = Vec::new();
    for line in program.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let Some((name, rest)) = line.split_once(':') else {
            lines.push((line.to_string(), None, vec![], vec![]));
            continue;
        };
        let (arguments, after) = rest.split_once("after").unwrap_or((rest, ""));
        let arguments: Vec<(Direction, String)> = arguments
            .split(';')
            .map(str::trim)
            .filter(|argument| !argument.is_empty())
            .map(|argument| {
                let (direction, tensor) = argument.split_once(' ').expect("direction and tensor");
                let direction = [Direction::In, Direction::Out, Direction::InOut]
                    .into_iter()
                    .find(|known| known.name().eq_ignore_ascii_case(direction))
                    .expect("a direction");
                (direction, tensor.to_string())
            })
            .collect();
        let params: Vec<KernelParam> = arguments
            .iter()
            .map(|&(direction, _)| KernelParam { direction, dtype: Some(DType::U8), optional: false })
            .collect();
        let kernel = (!params.is_empty()).then(|| {
            signatures.iter().position(|known| known.params == params).unwrap_or_else(|| {
                let name = format!("k{}", signatures.len());
                signatures.push(KernelSignature { name, core: CoreKind::Cube, params, scalars: 0 });
                signatures.len() - 1
            })
        });
        lines.push((
            name.to_string(),
            Some(kernel),
            arguments,
            after.split_whitespace().map(str::to_string).collect::<Vec<_>>(),
        ));
    }
    let mut builder = GraphBuilder::new(GraphLimits::default());
    builder.begin(signatures.into());
    let (mut objects, mut ids) = (HashMap::new(), HashMap::new());
    let (mut names, mut refused) = (HashMap::new(), Vec::new());
    for (name, kernel, arguments, after) in lines {
        let Some(kernel) = kernel else {
            match name.as_str() {
                "}" => builder.scope_end().expect("a scope is open"),
                "{" => builder.scope_begin(ScopeKind::Auto),
                "manual {" => builder.scope_begin(ScopeKind::Manual { check: true }),
                "unchecked {" => builder.scope_begin(ScopeKind::Manual { check: false }),
                other => panic!("{other}?"),
            }
            continue;
        };
        let accesses: Vec<Access<ObjectRegion>> = arguments
            .iter()
            .map(|(direction, tensor)| {
                let object = tensor.split('[').next().expect("a name").to_string();
                let object = *objects.entry(object).or_insert_with(|| builder.add_external(256, EntryWrites::Allowed));
                let tensor = ObjectRegion { object, region: parse_region(tensor) };
                Access { tensor, direction: *direction, split_dim: None }
            })
            .collect();
        let after: Vec<TaskId> = after.iter().map(|name| ids[name]).collect();
        let kernels: Vec<KernelId> = kernel.iter().map(|&kernel| KernelId(kernel as u16)).collect();
        let task = TaskDesc { kernels: &kernels, accesses: &accesses, after: &after, ..TaskDesc::default() };
        match builder.submit(&task) {
            Ok(id) => {
                ids.insert(name.clone(), id);
                names.insert(id, name);
            }
            Err(error) => refused.push((name, error)),
        }
    }
    Outcome { image: builder.freeze(None), names, refused }
}

impl Outcome {
    fn edges(&self) -> String {
        let tasks = self.image.tasks_and_end();
        let name = |task: usize| self.names.get(&TaskId(task as u32)).map_or("j", String::as_str);
        let mut edges = Vec::new();
        for task in 0..self.image.task_count() {
            let list = tasks[task].first_successor as usize..tasks[task + 1].first_successor as usize;
            for &to in &self.image.successors()[list] {
                edges.push(format!("{}>{}", name(task), name(to as usize)));
            }
        }
        edges.sort();
        edges.join(" ")
    }

    fn joins(&self) -> usize {
        self.image.tasks().iter().filter(|task| task.flags & TASK_INFERRED_JOIN != 0).count()
    }
}

#[track_caller]
fn check(program: &str, edges: &str) -> Outcome {
    let outcome = run(program);
    assert_eq!(outcome.edges(), edges);
    if !outcome.image.is_unchecked() {
        assert_eq!(Image::decode(&outcome.image.encode()).as_ref(), Ok(&outcome.image));
    }
    outcome
}

#[test]
fn a_chain_of_whole_objects() {
    check("w: out a\n r: in a; out b\n s: in b", "r>s w>r");
}

#[test]
fn write_after_write() {
    check("x: out a\n y: out a\n z: inout a", "x>y y>z");
}

#[test]
fn field_g3_war_edge_and_parallel_readers() {
    check("w: out a\n r: in a\n s: in a\n v: out a", "r>v s>v w>r w>s");
    // Also where nothing wrote before.
    check("r: in a\n s: in a\n v: out a", "r>v s>v");
}

#[test]
fn field_g4_reshape_view_keeps_dependency() {
    // Rows 2 and 3 as a matrix, as bytes, and a byte of them.
    check("w: out a[2..4, 0..16]\n r: in a[32..64]\n s: in a[63..64]\n t: in a[64..96]", "w>r w>s");
}

#[test]
fn field_g5_nothing_dropped_at_100_writers_64_readers() {
    let writers: String = (0..100).map(|i| format!("w{i}: out a[{}..{}]\n", i * 2, i * 2 + 2)).collect();
    let readers: String = (0..64).map(|i| format!("r{i}: in a\n")).collect();
    let outcome = run(&format!("{writers}{readers}v: out a"));
    // Everyone reads what all have written, and the last waits for all readers: through a join, not 6,400 edges.
    let edges = outcome.edges();
    assert_eq!(outcome.joins(), 1);
    assert_eq!(edges.split(' ').filter(|edge| edge.ends_with(">r0")).count(), 100);
    assert_eq!(edges.split(' ').filter(|edge| edge.ends_with(">j")).count(), 100);
    for reader in 1..64 {
        assert!(edges.contains(&format!("j>r{reader}")));
    }
    assert_eq!(edges.split(' ').filter(|edge| edge.starts_with('r') && edge.ends_with(">v")).count(), 64);
    assert!(Image::decode(&outcome.image.encode()).is_ok());
}

#[test]
fn many_readers_of_one_thing_then_many_tiles() {
    let readers: String = (0..50).map(|i| format!("r{i}: in a\n")).collect();
    let writers: String = (0..60).map(|i| format!("w{i}: out a[{}..{}]\n", i * 4, i * 4 + 4)).collect();
    let outcome = run(&format!("{readers}{writers}"));
    assert_eq!(outcome.joins(), 1);
    assert_eq!(outcome.image.successors().len(), 50 + 60);
    assert!(Image::decode(&outcome.image.encode()).is_ok());
}

#[test]
fn readers_before_and_after_a_tile_was_written() {
    // Cells first; then r0 reads all, tile 0 is written anew, many read all, and tiles 0 and 1 are written: tile 1 must
    // still wait for r0, which tile 0 need not.
    let tiles: String = (0..16).map(|i| format!("t{i}: out a[{}..{}]\n", i * 16, i * 16 + 16)).collect();
    let readers: String = (1..30).map(|i| format!("r{i}: in a\n")).collect();
    let outcome = run(&format!("{tiles}{tiles}r0: in a\nw0: out a[0..16]\n{readers}x: out a[0..16]\ny: out a[16..32]"));
    let edges = outcome.edges();
    assert!(edges.contains("r0>w0") && edges.contains("r0>y"), "{edges}");
    assert!(!edges.contains("r0>x"), "{edges}");
    assert!(Image::decode(&outcome.image.encode()).is_ok());
}

#[test]
fn slots_do_not_outlive_a_write_of_everything() {
    let tiles: String = (0..32).map(|i| format!("t{i}: out a[{}..{}]\n", i * 8, i * 8 + 8)).collect();
    let reads: String = (0..4).map(|i| format!("r{i}: in a\ns{i}: in a[0..200]\n")).collect();
    let outcome = run(&format!("{tiles}{reads}w: out a\n{tiles}{reads}{tiles}{reads}"));
    assert!(Image::decode(&outcome.image.encode()).is_ok());
    assert!(outcome.joins() >= 4, "{}", outcome.joins());
}

#[test]
fn disjoint_strided_tiles_have_no_edge() {
    check("a: out m[0..4, 0..8]\n b: out m[0..4, 8..16]\n c: in m[0..4, 6..10]\n d: in m[4..8, 0..8]", "a>c b>c");
    // A column against rows.
    check("a: out m[0..16, 3..4]\n b: out m[0..8, 4..16]\n c: in m[48..51]\n d: in m[51..52]", "a>d");
}

#[test]
fn tiles_after_the_object_was_cut_into_cells() {
    let tiles: String = (0..16)
        .map(|i| format!("w{i}: out m[{}..{}, {}..{}]\n", i / 4 * 4, i / 4 * 4 + 4, i % 4 * 4, i % 4 * 4 + 4))
        .collect();
    let outcome = run(&format!("{tiles}r: in m[4..8, 4..8]\n v: inout m[4..8, 4..8]\n x: in m[7..9, 7..9]"));
    // w5>v is implied by w5>r>v, and true all the same.
    assert_eq!(outcome.edges(), "r>v v>x w10>x w5>r w5>v w6>x w9>x");
}

#[test]
fn arguments_that_overlap() {
    let outcome = run("x: in a[0..8]; out a[7..12]\n y: in a[0..8]; in a[4..12]\n z: in a[0..8]; out a[8..12]");
    assert!(matches!(outcome.refused.as_slice(), [(name, SubmitError::ArgumentsOverlap { .. })] if name == "x"));
    assert_eq!(outcome.edges(), "y>z");
}

#[test]
fn explicit_edges_and_joins() {
    check("x: out a\n y: out b\n j1: after x y\n z: out c after j1", "j1>z x>j1 y>j1");
}

#[test]
fn manual_scopes_check_what_they_leave_out() {
    let outcome = check("manual {\n x: out a\n y: in a after x\n z: out a after y\n }\n r: in a", "x>y y>z z>r");
    assert!(outcome.refused.is_empty());
    let outcome = run("manual {\n x: out a\n y: in a\n }\n r: in a");
    let [(name, error)] = outcome.refused.as_slice() else { panic!("{outcome:?}") };
    assert_eq!(name, "y");
    assert_eq!(
        error.to_string(),
        "argument 0 of task 1 (`k1`, tag 0) meets task 0 (`k0`, tag 0) in object 0, and no explicit edge orders them"
    );
    assert_eq!(outcome.edges(), "x>r");
    // Hazards with tasks outside are inferred as ever.
    check("w: out a\n manual {\n x: in a\n }\n v: out a", "w>x x>v");
}

#[test]
fn unchecked_scopes_keep_every_task_for_those_outside() {
    let outcome = check("w: out a\n unchecked {\n x: inout a\n y: inout a\n }\n r: in a", "w>r w>x w>y x>r y>r");
    assert!(outcome.image.is_unchecked());
    assert_eq!(Image::decode(&outcome.image.encode()), Err(periscope_core::image::ImageError::Unchecked));
}

#[test]
fn a_scope_within_a_manual_scope_is_not_part_of_it() {
    check("manual {\n x: out a\n {\n y: in a\n }\n z: out a after y\n }", "x>y y>z");
}

#[test]
fn growth_is_linear_in_products() {
    // 300 rounds of 8 tiles and a read of everything: edges per round must not grow.
    let mut program = String::new();
    for round in 0..300 {
        for tile in 0..8 {
            program += &format!("w{round}_{tile}: inout a[{}..{}]\n", tile * 32, tile * 32 + 32);
        }
        program += &format!("r{round}: in a\n");
    }
    let outcome = run(&program);
    assert!(outcome.image.successors().len() < 300 * 40, "{} edges", outcome.image.successors().len());
}
