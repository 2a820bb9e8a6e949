//! What a kernel is called with, and how often.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use half::{bf16, f16};
use periscope_core::task::{Access, Comparison, CoreKind, Direction, ObjectRegion, Predicate};
use periscope_core::{DType, Element, Region};
use periscope_hal::Kernel;

use crate::clause::{Outcome, Subject, ensure, ensure_eq};
use crate::graph::{Graph, Task, elems, read, update, write};
use crate::stand::{Stand, ended_in_time};

pub(super) fn arguments_are_the_views_that_were_submitted(subject: Subject<'_>) -> Outcome {
    // Copies a transposed tile into the tile of another matrix.
    let copy = Kernel::host("copy", CoreKind::Vector, |args| {
        let (from, mut to) = (args.input::<f32>(0)?, args.output::<f32>(1)?);
        if from.shape() != [4, 3] || to.shape() != [4, 3] || args.len() != 2 {
            return Err(format!("shapes {:?} and {:?}, {} arguments", from.shape(), to.shape(), args.len()).into());
        }
        for i in 0..4 {
            for j in 0..3 {
                to.set(&[i, j], from.get(&[i, j])?)?;
            }
        }
        Ok(())
    });
    let stand = Stand::open(subject, vec![copy.input::<f32>().output::<f32>()])?;
    let (from, to) = (stand.alloc(10 * 20 * 4)?, stand.alloc(12 * 8 * 4)?);
    let values: Vec<f32> = (0..200u16).map(f32::from).collect();
    stand.store(from, 0, &values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())?;
    stand.store(to, 0, &[0; 12 * 8 * 4])?;

    let mut graph = Graph::new(&stand);
    let objects = [graph.object(from), graph.object(to)];
    let source = Region::contiguous(DType::F32, &[10, 20])?.slice(0, 2..5)?.slice(1, 7..11)?.transpose(0, 1)?;
    let target = Region::contiguous(DType::F32, &[12, 8])?.slice(0, 1..9)?.step_by(0, 2)?.slice(1, 5..8)?;
    let accesses = [
        Access {
            tensor: ObjectRegion { object: objects[0], region: source },
            direction: Direction::In,
            split_dim: None,
        },
        Access {
            tensor: ObjectRegion { object: objects[1], region: target },
            direction: Direction::Out,
            split_dim: None,
        },
    ];
    graph.task(&Task { kernels: &[0], accesses: &accesses, ..Task::default() })?;
    stand.run(&graph.freeze(), &[from, to])?;

    let mut expected = vec![0f32; 12 * 8];
    for i in 0..4 {
        for j in 0..3 {
            expected[(1 + 2 * i) * 8 + 5 + j] = values[(2 + j) * 20 + 7 + i];
        }
    }
    let got: Vec<f32> =
        stand.load(to, 0, to.len)?.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    ensure_eq!(got, expected, "a strided tile");
    Ok(())
}

pub(super) fn scalars_tag_and_number_arrive(subject: Subject<'_>) -> Outcome {
    let note = Kernel::host("note", CoreKind::Vector, |args| {
        let noted =
            [args.scalar(0)?, args.scalar(1)?, u64::from(args.tag()), args.task() as u64, args.scalars().len() as u64];
        args.output::<u64>(0)?.copy_from_slice(&noted);
        Ok(())
    });
    let stand = Stand::open(subject, vec![note.output::<u64>().scalars(2)])?;
    let mem = stand.words(&[0; 50])?;
    let mut graph = Graph::new(&stand);
    let object = graph.object(mem);
    let mut expected = Vec::new();
    for i in 0..10u32 {
        let scalars = [u64::MAX - u64::from(i), u64::from(i) << 40];
        let accesses = [write(object, u64::from(i) * 5, 5)];
        let id = graph.task(&Task {
            kernels: &[0],
            accesses: &accesses,
            scalars: &scalars,
            tag: 900 + i,
            ..Task::default()
        })?;
        expected.extend([scalars[0], scalars[1], 900 + u64::from(i), u64::from(id.0), 2]);
    }
    stand.run(&graph.freeze(), &[mem])?;
    ensure_eq!(stand.load_words(mem)?, expected, "scalars, tag, number and scalar count of each task");
    Ok(())
}

pub(super) fn every_lane_runs_once(subject: Subject<'_>) -> Outcome {
    // Each lane notes its index in the next free place, by a count that all lanes share.
    let lane = |name: &str, core, mark: u64| {
        Kernel::host(name, core, move |args| {
            let mut words = args.output::<u64>(0)?;
            let at = words.get(&[0])? + 1;
            words.set(&[0], at)?;
            words.set(&[at], mark * 100 + u64::from(args.lane()))?;
            Ok(())
        })
        .inout::<u64>()
    };
    let kernels = vec![
        lane("cube", CoreKind::Cube, 1),
        lane("vector 0", CoreKind::Vector, 2),
        lane("vector 1", CoreKind::Vector, 3),
    ];
    let stand = Stand::open(subject, kernels)?;
    for lanes in [&[0u16, 1, 2][..], &[0, 2], &[1]] {
        let mem = stand.words(&[0; 4])?;
        let mut graph = Graph::new(&stand);
        let object = graph.object(mem);
        graph.task(&Task { kernels: lanes, accesses: &[update(object, 0, 4)], ..Task::default() })?;
        let completion = stand.run(&graph.freeze(), &[mem])?;
        ensure_eq!(completion.tasks_done, 1, "tasks done");
        let words = stand.load_words(mem)?;
        ensure_eq!(words[0], lanes.len() as u64, "how many lanes ran");
        let mut marks = words[1..=lanes.len()].to_vec();
        marks.sort_unstable();
        let expected: Vec<u64> =
            lanes.iter().enumerate().map(|(lane, &kernel)| (u64::from(kernel) + 1) * 100 + lane as u64).collect();
        ensure_eq!(marks, expected, "which kernel ran as which lane");
    }
    Ok(())
}

pub(super) fn every_block_runs_once(subject: Subject<'_>) -> Outcome {
    const BLOCKS: u32 = 1000;
    let ran: Arc<Vec<AtomicU32>> = Arc::new((0..BLOCKS).map(|_| AtomicU32::new(0)).collect());
    let (count, after) = (Arc::clone(&ran), Arc::clone(&ran));
    let stand = Stand::open(
        subject,
        vec![
            Kernel::host("count", CoreKind::Vector, move |args| {
                if args.blocks() != BLOCKS {
                    return Err(format!("{} blocks", args.blocks()).into());
                }
                count[args.block() as usize].fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
            .inout::<u64>(),
            // Runs after: a task of many blocks is complete when all are.
            Kernel::host("check", CoreKind::Vector, move |args| {
                let runs = || after.iter().map(|ran| ran.load(Ordering::Relaxed));
                let round = args.input::<u64>(1)?.get(&[0])?;
                let missing = runs().filter(|&runs| u64::from(runs) != round).count();
                if missing > 0 {
                    return Err(format!("started before {missing} blocks").into());
                }
                args.output::<u64>(0)?.fill(1);
                Ok(())
            })
            .inout::<u64>()
            .input::<u64>(),
        ],
    )?;
    let (mem, round_mem) = (stand.words(&[0; BLOCKS as usize])?, stand.words(&[0])?);
    let mut graph = Graph::new(&stand);
    let (object, rounds) = (graph.object(mem), graph.object(round_mem));
    let mut split = update(object, 0, u64::from(BLOCKS));
    split.split_dim = Some(0);
    graph.task(&Task { kernels: &[0], accesses: &[split], blocks: BLOCKS, ..Task::default() })?;
    graph.task(&Task {
        kernels: &[1],
        accesses: &[update(object, 0, u64::from(BLOCKS)), read(rounds, 0, 1)],
        ..Task::default()
    })?;
    let graph = graph.freeze();
    for round in 1..=20 {
        stand.store(round_mem, 0, &u64::from(round).to_le_bytes())?;
        let completion = stand.run(&graph, &[mem, round_mem])?;
        ensure_eq!(completion.tasks_done, 2, "tasks done");
        if let Some(block) = ran.iter().position(|ran| ran.load(Ordering::Relaxed) != round) {
            ensure!(false, "block {block} ran {} times in {round} rounds", ran[block].load(Ordering::Relaxed));
        }
    }
    Ok(())
}

pub(super) fn split_parts_are_disjoint_and_complete(subject: Subject<'_>) -> Outcome {
    const BLOCKS: u32 = 12;
    let fill = Kernel::host("fill", CoreKind::Vector, |args| {
        // Its part of the columns of one matrix, made of its part of the rows of another.
        let (rows, mut columns) = (args.input::<u64>(0)?, args.output::<u64>(1)?);
        if rows.shape() != [2, 5] || columns.shape() != [7, 3] {
            return Err(format!("parts of shape {:?} and {:?}", rows.shape(), columns.shape()).into());
        }
        let sum: u64 = rows.to_vec().iter().sum();
        for i in 0..7 {
            for j in 0..3 {
                let old = columns.get(&[i, j])?;
                columns.set(&[i, j], old * 1000 + sum)?;
            }
        }
        Ok(())
    });
    let stand = Stand::open(subject, vec![fill.input::<u64>().inout::<u64>()])?;
    let n = u64::from(BLOCKS);
    let rows = stand.words(&(0..n * 2 * 5).collect::<Vec<u64>>())?;
    let columns = stand.words(&vec![1; 7 * BLOCKS as usize * 3])?;
    let mut graph = Graph::new(&stand);
    let objects = [graph.object(rows), graph.object(columns)];
    let region =
        |position: usize, shape: &[u64], direction, dim| -> Result<Access<ObjectRegion>, crate::clause::Stop> {
            let region = Region::contiguous(DType::U64, shape)?;
            Ok(Access { tensor: ObjectRegion { object: objects[position], region }, direction, split_dim: Some(dim) })
        };
    let accesses = [region(0, &[n * 2, 5], Direction::In, 0)?, region(1, &[7, n * 3], Direction::InOut, 1)?];
    graph.task(&Task { kernels: &[0], accesses: &accesses, blocks: BLOCKS, ..Task::default() })?;
    stand.run(&graph.freeze(), &[rows, columns])?;
    let expected: Vec<u64> = (0..7 * n * 3)
        .map(|at| {
            let block = at % (n * 3) / 3;
            1000 + (block * 10..block * 10 + 10).sum::<u64>()
        })
        .collect();
    ensure_eq!(stand.load_words(columns)?, expected, "columns made by the blocks");
    Ok(())
}

pub(super) fn promised_blocks_share_the_whole(subject: Subject<'_>) -> Outcome {
    let mark = Kernel::host("mark", CoreKind::Vector, |args| {
        // SAFETY: each block touches only the element of its own index, and makes no slice.
        let mut whole = unsafe { args.output_promised::<u64>(0)? };
        Ok(whole.set(&[u64::from(args.block())], 10 + u64::from(args.block()))?)
    });
    let stand = Stand::open(subject, vec![mark.output::<u64>()])?;
    let mem = stand.words(&[0; 40])?;
    let mut graph = Graph::new(&stand);
    let object = graph.object(mem);
    graph.task(&Task {
        kernels: &[0],
        accesses: &[write(object, 0, 40)],
        blocks: 40,
        by_promise: true,
        ..Task::default()
    })?;
    stand.run(&graph.freeze(), &[mem])?;
    ensure_eq!(stand.load_words(mem)?, (10..50).collect::<Vec<u64>>(), "elements marked by the blocks");
    Ok(())
}

pub(super) fn blocks_that_start_together_meet(subject: Subject<'_>) -> Outcome {
    // A sum by halves: in each round block i adds the part of block i + half, which needs every round to be complete.
    let parts: Arc<Vec<Mutex<u64>>> = Arc::new((0..64).map(|_| Mutex::new(0)).collect());
    let sum = Kernel::host("sum", CoreKind::Vector, move |args| {
        let block = args.block() as usize;
        let own = args.input::<u64>(0)?.get(&[0])?;
        *parts[block].lock().map_err(|_| "a part is broken")? = own;
        let mut half = args.blocks() as usize / 2;
        while half > 0 {
            args.wait_for_blocks()?;
            if block < half {
                let other = *parts[block + half].lock().map_err(|_| "a part is broken")?;
                *parts[block].lock().map_err(|_| "a part is broken")? += other;
            }
            half /= 2;
        }
        args.wait_for_blocks()?;
        let total = *parts[0].lock().map_err(|_| "a part is broken")?;
        args.wait_for_blocks()?;
        Ok(args.output::<u64>(1)?.set(&[0], total)?)
    });
    let stand = Stand::open(subject, vec![sum.input::<u64>().output::<u64>()])?;
    let cores = stand.device.info().geometry.vector_cores;
    let blocks = if cores < 2 { 1 } else { 1 << cores.ilog2() }.min(32);
    let numbers: Vec<u64> = (0..u64::from(blocks)).map(|i| 3 * i + 1).collect();
    let (from, to) = (stand.words(&numbers)?, stand.words(&vec![0; blocks as usize])?);
    let mut graph = Graph::new(&stand);
    let objects = [graph.object(from), graph.object(to)];
    let mut accesses = [read(objects[0], 0, u64::from(blocks)), write(objects[1], 0, u64::from(blocks))];
    for access in &mut accesses {
        access.split_dim = Some(0);
    }
    graph.task(&Task { kernels: &[0], accesses: &accesses, blocks, start_together: true, ..Task::default() })?;
    let graph = graph.freeze();
    for round in 0..5 {
        let execution = stand.launch(&graph, &[from, to])?;
        ended_in_time(&*execution)?.result?;
        ensure_eq!(stand.load_words(to)?, vec![numbers.iter().sum::<u64>(); blocks as usize], "sums of round {round}");
    }
    Ok(())
}

pub(super) fn predicates_compare_as_their_type_does(subject: Subject<'_>) -> Outcome {
    fn check<T: Element>(stand: &Stand, element: T, constant: T, expected: [bool; 6]) -> Outcome {
        use Comparison::{Eq, Ge, Gt, Le, Lt, Ne};
        let flag = stand.alloc(64)?;
        // Not the first element, and the bytes around it are not zero.
        stand.store(flag, 0, &[0x5a; 64])?;
        let size = T::DTYPE.size_bytes();
        stand.store(flag, 2 * size, &element.to_bits64().to_le_bytes()[..size as usize])?;
        let ran = stand.words(&[0; 6])?;
        let mut graph = Graph::new(stand);
        let objects = [graph.object(flag), graph.object(ran)];
        for (position, comparison) in [Eq, Ne, Lt, Le, Gt, Ge].into_iter().enumerate() {
            let tensor = elems(objects[0], T::DTYPE, 2, 1);
            let accesses = [write(objects[1], position as u64, 1)];
            let predicate = Some(Predicate { tensor, comparison, constant_bits: constant.to_bits64() });
            graph.task(&Task { kernels: &[0], accesses: &accesses, predicate, ..Task::default() })?;
        }
        let completion = stand.run(&graph.freeze(), &[flag, ran])?;
        ensure_eq!(completion.tasks_done, 6, "tasks done, those that did not run included");
        let got: Vec<bool> = stand.load_words(ran)?.into_iter().map(|word| word == 1).collect();
        ensure_eq!(got, expected, "{element:?} ==, !=, <, <=, >, >= {constant:?} of {}", T::DTYPE);
        stand.free(flag)?;
        stand.free(ran)
    }
    const EQUAL: [bool; 6] = [true, false, false, true, false, true];
    const LESS: [bool; 6] = [false, true, true, true, false, false];
    const GREATER: [bool; 6] = [false, true, false, false, true, true];
    const UNORDERED: [bool; 6] = [false, true, false, false, false, false];
    let mark = Kernel::host("mark", CoreKind::Vector, |args| Ok(args.output::<u64>(0)?.set(&[0], 1)?));
    let stand = &Stand::open(subject, vec![mark.output::<u64>()])?;
    check(stand, 1.5f64, 1.5, EQUAL)?;
    check(stand, f64::NAN, 0.0, UNORDERED)?;
    check(stand, -0.0f32, 0.0, EQUAL)?;
    check(stand, f32::NEG_INFINITY, -1.0, LESS)?;
    check(stand, f16::from_f32(-2.0), f16::from_f32(1.0), LESS)?;
    check(stand, f16::NAN, f16::NAN, UNORDERED)?;
    check(stand, bf16::from_f32(2.0), bf16::from_f32(-1.0), GREATER)?;
    check(stand, -1i8, 1, LESS)?;
    check(stand, i16::MIN, i16::MAX, LESS)?;
    check(stand, -1i32, -1, EQUAL)?;
    check(stand, i64::MAX, -1, GREATER)?;
    check(stand, 200u8, 100, GREATER)?;
    check(stand, 1u16, 0x8000, LESS)?;
    check(stand, u32::MAX, 0, GREATER)?;
    check(stand, u64::MAX, 1, GREATER)?;
    check(stand, true, true, EQUAL)?;
    check(stand, false, true, LESS)
}

pub(super) fn a_predicate_sees_what_earlier_tasks_wrote(subject: Subject<'_>) -> Outcome {
    // A countdown that stops by itself: each task subtracts one from the element that decides whether the next runs.
    let count = Kernel::host("count", CoreKind::Vector, |args| {
        let mut left = args.output::<i32>(0)?;
        let now = left.get(&[0])?;
        Ok(left.set(&[0], now - 1)?)
    });
    let mark = Kernel::host("mark", CoreKind::Vector, |args| Ok(args.output::<u64>(0)?.set(&[0], 1)?));
    let stand = Stand::open(subject, vec![count.inout::<i32>(), mark.output::<u64>()])?;
    let (left, ran) = (stand.alloc(4)?, stand.words(&[0; 20])?);
    stand.store(left, 0, &7i32.to_le_bytes())?;
    let mut graph = Graph::new(&stand);
    let objects = [graph.object(left), graph.object(ran)];
    for round in 0..20 {
        let element = elems(objects[0], DType::I32, 0, 1);
        let predicate = Some(Predicate { tensor: element, comparison: Comparison::Gt, constant_bits: 0 });
        let accesses = [write(objects[1], round, 1)];
        graph.task(&Task { kernels: &[1], accesses: &accesses, predicate, ..Task::default() })?;
        let accesses = [Access { tensor: element, direction: Direction::InOut, split_dim: None }];
        graph.task(&Task { kernels: &[0], accesses: &accesses, ..Task::default() })?;
    }
    stand.run(&graph.freeze(), &[left, ran])?;
    let expected: Vec<u64> = (0..20).map(|round| u64::from(round < 7)).collect();
    ensure_eq!(stand.load_words(ran)?, expected, "rounds that ran before the countdown reached 0");
    Ok(())
}
