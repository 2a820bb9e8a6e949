//! The access contract, row by row: every way to touch a tensor, every kind of tensor, every profile.
//!
//! Each refusal is checked for its code, for what its message names, and for touching nothing: the destination keeps its
//! elements, no counter of the device or of its memory moves, and the device goes on working.

mod common;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use common::*;
use periscope::{
    Access, Arg, Comparison, DType, Device, Error, ErrorKind, HostTensor, Init, LaunchError, MemorySettings, Predicate,
    Resident, SubmitError, TaskDesc, Tensor,
};
use periscope::{Context, Direction};

/// A kind of tensor that an orchestration can meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Subject {
    Staged(Direction),
    Resident(Direction),
    Captured,
    Graph,
}

const SUBJECTS: [Subject; 8] = [
    Subject::Staged(IN),
    Subject::Staged(OUT),
    Subject::Staged(INOUT),
    Subject::Resident(IN),
    Subject::Resident(OUT),
    Subject::Resident(INOUT),
    Subject::Captured,
    Subject::Graph,
];

const START: [i32; 8] = [10, 11, 12, 13, 14, 15, 16, 17];
const OTHER: [i32; 8] = [-1, -2, -3, -4, -5, -6, -7, -8];

impl Subject {
    fn tasks_may_write(self) -> bool {
        !matches!(self, Subject::Staged(Direction::In) | Subject::Resident(Direction::In))
    }

    /// What messages call it.
    fn name(self) -> &'static str {
        match self {
            Subject::Staged(_) | Subject::Resident(_) => "`subject`",
            Subject::Captured => "captured",
            Subject::Graph => "graph memory",
        }
    }

    /// Runs `body` over a subject that holds [`START`]; second tensor: an OUT that holds zeros. Returns how the run ended
    /// and what caller or device then have of both (nothing of graph memory).
    fn run(
        self,
        bench: &Bench,
        body: impl Fn(&Bench, &mut Context<'_>, &Tensor, &Tensor) -> Result<(), Error> + Send + Sync + 'static,
    ) -> (Result<periscope::Report, Error>, Option<Vec<i32>>, Vec<i32>) {
        let inner = bench.clone();
        let mut sink = [0; 8];
        let (mut staged, mut resident) = (START.to_vec(), None);
        let result = match self {
            Subject::Staged(direction) => {
                let subject = match direction {
                    Direction::In => Arg::read(&[8], &staged).unwrap(),
                    _ => Arg::write(&[8], &mut staged).unwrap(),
                };
                let args = &mut [subject, Arg::write(&[8], &mut sink).unwrap()];
                bench.run(&[("subject", direction), ("sink", OUT)], args, move |ctx, tensors| {
                    body(&inner, ctx, &tensors[0], &tensors[1])
                })
            }
            Subject::Resident(direction) => {
                let subject = resident.insert(bench.upload(&START));
                let args = &mut [Arg::from(&*subject), Arg::write(&[8], &mut sink).unwrap()];
                bench.run(&[("subject", direction), ("sink", OUT)], args, move |ctx, tensors| {
                    body(&inner, ctx, &tensors[0], &tensors[1])
                })
            }
            Subject::Captured => {
                let subject = resident.insert(bench.upload(&START)).tensor();
                let args = &mut [Arg::write(&[8], &mut sink).unwrap()];
                bench.run(&[("sink", OUT)], args, move |ctx, tensors| body(&inner, ctx, &subject, &tensors[0]))
            }
            Subject::Graph => {
                let args = &mut [Arg::write(&[8], &mut sink).unwrap()];
                bench.run(&[("sink", OUT)], args, move |ctx, tensors| {
                    let subject = ctx.alloc::<i32>([8])?;
                    ctx.write_from(subject, &START)?;
                    body(&inner, ctx, &subject, &tensors[0])
                })
            }
        };
        let after = match (self, &resident) {
            (Subject::Staged(_), _) => Some(staged),
            (_, Some(resident)) => Some(bench.device.read::<i32>(resident).unwrap_or_default()),
            _ => None,
        };
        (result, after, sink.to_vec())
    }
}

fn every_subject(
    subjects: &[Subject],
    body: impl Fn(Subject, &Bench, &mut Context<'_>, &Tensor, &Tensor) -> Result<(), Error> + Send + Sync + Copy + 'static,
) {
    everywhere(|bench| {
        for &subject in subjects {
            let (result, _, _) =
                subject.run(bench, move |bench, ctx, tensor, sink| body(subject, bench, ctx, tensor, sink));
            result.unwrap_or_else(|error| panic!("{} {subject:?}: {error}", bench.uri));
            bench.assert_works();
        }
    });
}

/// The access is refused with `code`, its message has `words`, and nothing is touched.
fn refused(
    bench: &Bench,
    ctx: &mut Context<'_>,
    tensor: &Tensor,
    touch: Touch,
    code: u32,
    words: &[&str],
) -> ErrorKind {
    let before = bench.counts();
    let result = touch.apply(ctx, tensor, &OTHER[..tensor.num_elems() as usize]);
    let kind = assert_refused(result, code, words);
    assert_eq!(bench.counts(), before, "{} {touch:?}: a refusal moved a counter", bench.uri);
    kind
}

// ---- bytes that no task of this graph touches ----

#[test]
fn untouched_bytes_read_as_they_are() {
    every_subject(&SUBJECTS, |subject, bench, ctx, tensor, _| {
        for touch in READS {
            let before = bench.counts();
            assert_eq!(touch.apply(ctx, tensor, &[])?, START, "{} {subject:?} {touch:?}", bench.uri);
            if matches!(subject, Subject::Staged(_)) {
                assert_eq!(bench.counts(), before, "a staged tensor caused device traffic");
            }
        }
        Ok(())
    });
}

#[test]
fn writes_are_seen_at_once_by_every_task_and_after_the_run() {
    everywhere(|bench| {
        for subject in SUBJECTS {
            for touch in WRITES {
                let (result, after, sink) = subject.run(bench, move |_, ctx, tensor, sink| {
                    let part = tensor.slice(0, 2..5)?;
                    touch.apply(ctx, &part, &OTHER[..3])?;
                    let mut seen = [0; 8];
                    ctx.read_into(tensor, &mut seen)?;
                    assert_eq!(seen, [10, 11, -1, -2, -3, 15, 16, 17]);
                    assert_eq!(ctx.view::<i32>(tensor)?.to_vec(), seen);
                    ctx.task(COPY).input(tensor).output(sink).submit()?;
                    Ok(())
                });
                let what = format!("{} {subject:?} {touch:?}", bench.uri);
                result.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(sink, [10, 11, -1, -2, -3, 15, 16, 17], "{what}");
                let expected = match subject {
                    // The caller's memory never changes if IN.
                    Subject::Staged(Direction::In) => START,
                    _ => [10, 11, -1, -2, -3, 15, 16, 17],
                };
                assert_eq!(after.unwrap_or_else(|| expected.to_vec()), expected, "{what}");
            }
        }
    });
}

#[test]
fn a_guard_for_writing_shows_what_is_there() {
    every_subject(&SUBJECTS, |subject, bench, ctx, tensor, _| {
        let mut view = ctx.view_mut::<i32>(tensor.step_by(0, 2)?)?;
        assert_eq!(view.as_strided().to_vec(), [10, 12, 14, 16], "{} {subject:?}", bench.uri);
        view.set(&[3], 99).unwrap();
        assert_eq!(ctx.view::<i32>(tensor)?.to_vec(), [10, 11, 12, 13, 14, 15, 99, 17], "{} {subject:?}", bench.uri);
        Ok(())
    });
}

#[test]
fn an_in_argument_of_exclusive_memory_is_not_written_either() {
    everywhere(|bench| {
        let mut host = START;
        let args = &mut [Arg::write(&[8], &mut host).unwrap()];
        bench.run(&[("subject", IN)], args, |ctx, tensors| ctx.write(tensors[0], [0], 99i32)).unwrap();
        assert_eq!(host, START);
    });
}

#[test]
fn staged_outputs_return_only_what_was_written() {
    everywhere(|bench| {
        for direction in [OUT, INOUT] {
            let mut host = START;
            let args = &mut [Arg::write(&[8], &mut host).unwrap()];
            let report = bench.run(&[("subject", direction)], args, |ctx, tensors| {
                ctx.write(tensors[0], [1], 100)?;
                ctx.write(tensors[0], [5], 101)?;
                ctx.task(FILL).output(tensors[0].slice(0, 4..5)?).scalar(102).submit()?;
                // An OUT tensor's previous bytes are there for tasks too.
                ctx.task(ADD).inout(tensors[0].slice(0, 6..7)?).scalar(1000).submit()?;
                Ok(())
            });
            assert_eq!(report.unwrap().bytes.d2h, 8, "only what tasks wrote comes back from the device");
            assert_eq!(host, [10, 100, 12, 13, 102, 101, 1016, 17], "{} {direction:?}", bench.uri);
        }
    });
}

#[test]
fn a_task_overwrites_what_the_orchestrator_wrote_before_it() {
    everywhere(|bench| {
        for subject in SUBJECTS.into_iter().filter(|subject| subject.tasks_may_write()) {
            let (result, after, sink) = subject.run(bench, |_, ctx, tensor, sink| {
                ctx.write_from(tensor, &OTHER)?;
                ctx.task(FILL).output(tensor.slice(0, 0..4)?).scalar(7).submit()?;
                ctx.task(ADD).inout(tensor.slice(0, 4..6)?).scalar(100).submit()?;
                ctx.task(COPY).input(tensor).output(sink).submit()?;
                Ok(())
            });
            result.unwrap();
            let expected = [7, 7, 7, 7, 95, 94, -7, -8];
            assert_eq!(sink, expected, "{} {subject:?}", bench.uri);
            assert_eq!(after.unwrap_or(expected.to_vec()), expected, "{} {subject:?}", bench.uri);
        }
    });
}

// ---- bytes that a task of this graph touches ----

#[test]
fn bytes_with_a_writer_are_refused_and_disjoint_bytes_are_not() {
    let writable: Vec<_> = SUBJECTS.into_iter().filter(|subject| subject.tasks_may_write()).collect();
    every_subject(&writable, |subject, bench, ctx, tensor, _| {
        let odd = tensor.slice(0, 1..8)?.step_by(0, 2)?;
        let even = tensor.step_by(0, 2)?;
        ctx.task(FILL).output(odd).scalar(5).tag(77).submit()?;
        for touch in READS.into_iter().chain(WRITES) {
            let access = if READS.contains(&touch) { "read" } else { "write" };
            let words = ["task 0", "`fill`", "tag 77", subject.name(), access];
            refused(bench, ctx, &odd, touch, 201, &words);
            // A range that only shares an element is refused as a whole.
            if !matches!(touch, Touch::Read | Touch::ReadBits | Touch::Write | Touch::WriteBits) {
                refused(bench, ctx, &tensor.slice(0, 0..2)?, touch, 201, &["[2]"]);
            }
        }
        let kind = refused(bench, ctx, &odd.slice(0, 2..3)?, Touch::Read, 201, &["element [0]"]);
        assert!(matches!(kind, ErrorKind::HasWriter { access: "read", .. }), "{kind:?}");
        for touch in READS {
            assert_eq!(touch.apply(ctx, &even, &[])?, [10, 12, 14, 16], "{} {subject:?} {touch:?}", bench.uri);
        }
        for touch in WRITES {
            touch.apply(ctx, &even, &OTHER[..4])?;
        }
        assert_eq!(ctx.view::<i32>(even)?.to_vec(), OTHER[..4]);
        Ok(())
    });
}

#[test]
fn bytes_with_readers_are_read_but_not_written() {
    every_subject(&SUBJECTS, |subject, bench, ctx, tensor, _| {
        let (left, right) = (tensor.slice(0, 0..4)?, tensor.slice(0, 4..8)?);
        ctx.task(READ).input(right).tag(31).submit()?;
        for touch in READS {
            assert_eq!(touch.apply(ctx, tensor, &[])?, START, "{} {subject:?} {touch:?}", bench.uri);
        }
        for touch in WRITES {
            let kind = refused(bench, ctx, &right, touch, 202, &["task 0", "`read`", "tag 31", subject.name()]);
            assert!(matches!(kind, ErrorKind::HasReader { .. }), "{kind:?}");
            touch.apply(ctx, &left, &OTHER[..4])?;
        }
        // With a writer too, the writer is the reason.
        if subject.tasks_may_write() {
            ctx.task(FILL).output(right).scalar(0).submit()?;
            refused(bench, ctx, &right, Touch::WriteFrom, 201, &["task 1", "`fill`"]);
        }
        Ok(())
    });
}

#[test]
fn refused_writes_leave_no_trace() {
    everywhere(|bench| {
        for subject in SUBJECTS {
            let (result, after, sink) = subject.run(bench, |_, ctx, tensor, sink| {
                ctx.task(COPY).input(tensor).output(sink).submit()?;
                for touch in WRITES {
                    assert_refused(touch.apply(ctx, tensor, &OTHER), 202, &[]);
                }
                Ok(())
            });
            let report = result.unwrap();
            assert_eq!(sink, START, "{} {subject:?}", bench.uri);
            assert_eq!(after.unwrap_or(START.to_vec()), START, "{} {subject:?}", bench.uri);
            let of_tensor = report.tensor_views.iter().find(|view| view.tensor == "subject");
            assert_eq!(of_tensor, None, "a refused first touch established a view");
        }
    });
}

#[test]
fn a_predicate_reads_its_element_and_a_skipped_task_leaves_what_was_there() {
    every_subject(&SUBJECTS, |_, bench, ctx, tensor, sink| {
        let flag = tensor.slice(0, 0..1)?;
        ctx.task(FILL).output(sink).scalar(3).only_if(flag, Comparison::Eq, 10i32).submit()?;
        refused(bench, ctx, &flag, Touch::Write, 202, &["`fill`"]);
        assert_eq!(ctx.read::<i32>(flag, [0])?, 10);
        Ok(())
    });
    everywhere(|bench| {
        for (value, expected) in [(1i32, 5), (2, 9)] {
            let mut out = [9i32];
            let args =
                &mut [Arg::read(&[1], std::slice::from_ref(&value)).unwrap(), Arg::write(&[1], &mut out).unwrap()];
            bench
                .run(&[("flag", IN), ("out", OUT)], args, |ctx, tensors| {
                    ctx.task(FILL).output(tensors[1]).scalar(5).only_if(tensors[0], Comparison::Lt, 2i32).submit()?;
                    Ok(())
                })
                .unwrap();
            assert_eq!(out, [expected], "{}", bench.uri);
        }
        // The orchestrator's write is what the device compares.
        let mut out = [0i32];
        let args = &mut [Arg::read(&[1], &[7i32]).unwrap(), Arg::write(&[1], &mut out).unwrap()];
        bench
            .run(&[("flag", IN), ("out", OUT)], args, |ctx, tensors| {
                ctx.write(tensors[0], [0], 8i32)?;
                ctx.task(FILL).output(tensors[1]).scalar(5).only_if(tensors[0], Comparison::Eq, 8i32).submit()?;
                Ok(())
            })
            .unwrap();
        assert_eq!(out, [5]);
        let args = &mut [Arg::read(&[1], &[7i32]).unwrap()];
        let result = bench.run(&[("flag", IN)], args, |ctx, tensors| {
            ctx.join().only_if(tensors[0], Comparison::Eq, 1.0f32).submit().map(|_| ())
        });
        assert_refused(result, 104, &["`flag`", "i32", "f32"]);
    });
}

// ---- graph memory ----

#[test]
fn graph_memory_has_no_value_until_it_is_written() {
    every_subject(&[Subject::Staged(IN)], |_, bench, ctx, tensor, sink| {
        let memory = ctx.alloc::<i32>([8])?;
        for touch in READS {
            refused(bench, ctx, &memory, touch, 204, &["graph memory", "no value"]);
        }
        ctx.write(memory, [2], 22)?;
        assert_eq!(ctx.read::<i32>(memory, [2])?, 22);
        refused(bench, ctx, &memory, Touch::ReadInto, 204, &["bytes 0..8"]);
        // As an accumulator may: a task adds to bytes without a value.
        let accumulator = ctx.alloc::<i32>([1])?;
        ctx.task(ADD).inout(accumulator).scalar(1).submit()?;
        ctx.task(COPY).input(tensor).output(memory).submit()?;
        refused(bench, ctx, &memory, Touch::Read, 201, &["`copy`"]);
        ctx.task(COPY).input(memory).output(sink).submit()?;
        Ok(())
    });
}

#[test]
fn graph_memory_of_one_run_is_apart_and_is_used_again_by_the_next() {
    everywhere(|bench| {
        let mut allocations = 0;
        for round in 0..3 {
            let mut sink = [0; 24];
            let args = &mut [Arg::write(&[24], &mut sink).unwrap()];
            let report = bench
                .run(&[("sink", OUT)], args, move |ctx, tensors| {
                    // Small ones side by side, and ones that need segments of their own.
                    let lens = [1, 3, 32, 33, 100, 300_000, 5, 400_000];
                    let mut memories = Vec::new();
                    for (i, len) in lens.into_iter().cycle().take(24).enumerate() {
                        let memory = ctx.alloc::<i32>([len])?;
                        let value = round * 100 + i as i32;
                        if i % 2 == 0 {
                            ctx.view_mut::<i32>(memory)?.fill(value);
                        } else {
                            ctx.task(FILL).output(memory).scalar(value as u64).submit()?;
                        }
                        memories.push(memory);
                    }
                    for (i, memory) in memories.iter().enumerate() {
                        let last = memory.slice(0, memory.dim(0) - 1..memory.dim(0))?;
                        let sink = tensors[0].slice(0, i as u64..i as u64 + 1)?;
                        ctx.task(SUM).input(memory.slice(0, 0..1)?).input(last).output(sink).submit()?;
                    }
                    Ok(())
                })
                .unwrap();
            assert_eq!(sink, std::array::from_fn(|i| 2 * (round * 100 + i as i32)), "{}", bench.uri);
            assert!(report.graph_memory_bytes >= 4 * 3 * 700_174, "{}", report.graph_memory_bytes);
            let now = bench.device.counts().allocations;
            assert!(round == 0 || now == allocations, "{}: a warm run allocates nothing", bench.uri);
            allocations = now;
        }
    });
}

#[test]
fn graph_memory_ends_with_its_scope() {
    every_subject(&[Subject::Staged(IN)], |_, bench, ctx, tensor, _| {
        let (outer, inner) = ctx.scope(|ctx| {
            let outer = ctx.alloc::<i32>([8])?;
            ctx.write_from(outer, &START)?;
            let inner = ctx.scope(|ctx| {
                let inner = ctx.alloc::<i32>([8])?;
                ctx.write_from(inner, &OTHER)?;
                Ok(inner)
            })?;
            assert_eq!(ctx.read::<i32>(outer, [0])?, 10);
            Ok((outer, inner))
        })?;
        for memory in [outer, inner] {
            for touch in READS.into_iter().chain(WRITES) {
                let kind = refused(bench, ctx, &memory, touch, 305, &["graph memory", "scope"]);
                assert!(matches!(kind, ErrorKind::ScopeEnded { .. }), "{kind:?}");
            }
            let result = ctx.task(COPY).input(tensor).output(memory).submit();
            assert_refused(result, 411, &["graph memory", "scope has ended"]);
        }
        Ok(())
    });
}

#[test]
fn scopes_begin_and_end_in_pairs_and_keep_the_first_cause() {
    everywhere(|bench| {
        let result = bench.run(&[], &mut [], |ctx, _| ctx.scope_end());
        assert_refused(result, 400, &["no scope is open"]);
        let result = bench.run(&[], &mut [], |ctx, _| {
            ctx.scope(|ctx| {
                ctx.scope_end()?;
                Err::<(), _>(Error::orchestration("the first cause"))
            })
        });
        assert_refused(result, 901, &["the first cause"]);
        // A scope that is left open is no obstacle to the run, nor to the next.
        bench.run(&[], &mut [], |ctx, _| ctx.scope_begin()).unwrap();
        bench.run(&[], &mut [], |ctx, _| ctx.manual_scope_begin()).unwrap();
        bench.assert_works();
    });
}

#[test]
fn producers_are_known_in_manual_scopes_and_edges_are_checked() {
    let writable: Vec<_> = SUBJECTS.into_iter().filter(|subject| subject.tasks_may_write()).collect();
    every_subject(&writable, |_, bench, ctx, tensor, sink| {
        ctx.manual_scope(|ctx| {
            let first = ctx.task(ADD).inout(tensor).scalar(1).submit()?;
            refused(bench, ctx, tensor, Touch::ReadInto, 201, &["`add`"]);
            refused(bench, ctx, tensor, Touch::WriteFrom, 201, &["`add`"]);
            let uncovered = ctx.task(COPY).input(tensor).output(sink).submit();
            let kind = assert_refused(uncovered, 423, &["task 0", "no explicit edge"]);
            assert!(matches!(kind, ErrorKind::Submit { source: SubmitError::UncoveredHazard { .. }, .. }), "{kind:?}");
            ctx.task(COPY).input(tensor).output(sink).after(first).submit()?;
            Ok(())
        })?;
        refused(bench, ctx, tensor, Touch::View, 201, &["`add`"]);
        Ok(())
    });
}

// ---- bytes without a value ----

#[test]
fn uninit_bytes_are_refused_until_something_gives_them_a_value() {
    everywhere(|bench| {
        let resident = bench.device.alloc_uninit::<i32>([8]).unwrap();
        assert_refused(bench.device.read::<i32>(&resident), 204, &["no value"]);
        let inner = bench.clone();
        bench
            .run(&[("subject", INOUT)], &mut [Arg::from(&resident)], move |ctx, tensors| {
                let subject = tensors[0];
                for touch in READS {
                    refused(&inner, ctx, &subject, touch, 204, &["`subject`", "no value", "bytes 0.."]);
                }
                assert!(inner.device.counts().established == 0, "a refused first touch established a view");
                ctx.write(subject, [3], 33)?;
                assert_eq!(ctx.read::<i32>(subject, [3])?, 33);
                refused(&inner, ctx, &subject.slice(0, 2..3)?, Touch::Read, 204, &["bytes 8..12"]);
                refused(&inner, ctx, &subject, Touch::View, 204, &["[8]"]);
                let mut view = ctx.view_mut::<i32>(subject.slice(0, 4..6)?)?;
                view.copy_from_slice(&[44, 55]);
                assert_eq!(ctx.view::<i32>(subject.slice(0, 3..6)?)?.to_vec(), [33, 44, 55]);
                ctx.task(FILL).output(subject.slice(0, 6..8)?).scalar(66).submit()?;
                Ok(())
            })
            .unwrap();
        assert_eq!(bench.read(&resident.slice(0, 3..8).unwrap()), [33, 44, 55, 66, 66], "{}", bench.uri);
        assert_refused(bench.device.read::<i32>(&resident), 204, &["bytes 0..12"]);
        bench.device.write(&resident.slice(0, 0..3).unwrap(), &[1, 2, 3]).unwrap();
        assert_eq!(bench.read(&resident), [1, 2, 3, 33, 44, 55, 66, 66], "{}", bench.uri);
        bench.assert_works();
    });
}

// ---- bytes that a failed run may have written ----

#[test]
fn a_failed_run_poisons_what_its_tasks_may_have_written_until_it_is_rewritten() {
    everywhere(|bench| {
        for fail in [FAIL, PANIC] {
            let resident = bench.upload(&START);
            let other = bench.upload(&OTHER);
            let args = || [Arg::from(&resident), Arg::from(&other)];
            let params = [("subject", INOUT), ("other", INOUT)];
            let result = bench.run(&params, &mut args(), move |ctx, tensors| {
                // A view exists, and the host has written both kinds of bytes.
                ctx.write(tensors[0], [2], 99)?;
                ctx.write(tensors[0], [7], 98)?;
                ctx.write(tensors[1], [0], 97)?;
                ctx.task(fail).inout(tensors[0].slice(0, 2..5)?).tag(4).submit()?;
                Ok(())
            });
            let kind = assert_refused(result, 601, &["failed", "as it was asked to", "tag 4"]);
            let run = match kind {
                ErrorKind::Run { run, .. } => run.to_string(),
                other => panic!("{other:?}"),
            };
            let words = ["`subject`", &format!("run {run}"), "bytes 8..20"];
            let inner = bench.clone();
            bench
                .run(&params, &mut args(), {
                    let words = words.map(str::to_owned);
                    move |ctx, tensors| {
                        let words: Vec<&str> = words.iter().map(String::as_str).collect();
                        let spoilt = tensors[0].slice(0, 2..5)?;
                        for touch in [Touch::ReadInto, Touch::View] {
                            refused(&inner, ctx, &spoilt, touch, 205, &words);
                        }
                        for touch in [Touch::Read, Touch::ReadBits] {
                            refused(&inner, ctx, &spoilt, touch, 205, &["`subject`", "bytes 8..12"]);
                        }
                        // Bytes beside it are as they were, and the orchestrator's writes are kept.
                        assert_eq!(ctx.read::<i32>(tensors[0], [1])?, 11);
                        assert_eq!(ctx.read::<i32>(tensors[0], [7])?, 98);
                        assert_eq!(ctx.read::<i32>(tensors[1], [0])?, 97);
                        Ok(())
                    }
                })
                .unwrap();
            assert_refused(bench.device.read::<i32>(&resident), 205, &[&format!("run {run}")]);
            // A task that would read them is refused before anything runs.
            let launches = bench.counts().1.launches;
            let result = bench.run(&params, &mut args(), |ctx, tensors| {
                ctx.task(READ).input(tensors[0]).submit()?;
                Ok(())
            });
            assert_refused(result, 205, &words);
            assert_eq!(bench.counts().1.launches, launches);
            // Rewriting: by the host, by a task, by an upload.
            bench
                .run(&params, &mut args(), |ctx, tensors| {
                    ctx.write(tensors[0], [2], 1)?;
                    assert_eq!(ctx.read::<i32>(tensors[0], [2])?, 1);
                    ctx.task(FILL).output(tensors[0].slice(0, 3..4)?).scalar(2).submit()?;
                    Ok(())
                })
                .unwrap();
            assert_refused(bench.device.read::<i32>(&resident), 205, &["bytes 16..20"]);
            bench.device.write(&resident.slice(0, 4..5).unwrap(), &[3]).unwrap();
            assert_eq!(bench.read(&resident), [10, 11, 1, 2, 3, 15, 16, 98], "{}", bench.uri);
            bench.assert_works();
        }
    });
}

#[test]
fn a_failed_run_leaves_staged_arguments_alone() {
    everywhere(|bench| {
        let mut host = START;
        let args = &mut [Arg::write(&[8], &mut host).unwrap()];
        let result = bench.run(&[("subject", INOUT)], args, |ctx, tensors| {
            ctx.write(tensors[0], [7], 98)?;
            ctx.task(FAIL).inout(tensors[0].slice(0, 0..4)?).submit()?;
            Ok(())
        });
        let kind = assert_refused(result, 601, &["kernel `fail` of task 0"]);
        assert!(matches!(kind, ErrorKind::Run { source: LaunchError::Kernel { .. }, .. }), "{kind:?}");
        assert_eq!(host, START, "{}", bench.uri);
        bench.assert_works();
    });
}

#[test]
fn an_orchestration_that_fails_keeps_its_writes_to_resident_tensors_only() {
    everywhere(|bench| {
        let resident = bench.upload(&START);
        let mut host = START;
        let params = [("resident", INOUT), ("staged", INOUT)];
        let launches = bench.counts().1.launches;
        let args = &mut [Arg::from(&resident), Arg::write(&[8], &mut host).unwrap()];
        let result = bench.run(&params, args, |ctx, tensors| {
            ctx.write(tensors[0], [1], 100)?;
            ctx.write(tensors[1], [1], 100)?;
            ctx.task(FILL).output(tensors[0]).scalar(0).submit()?;
            Err(Error::orchestration("changed its mind"))
        });
        assert_refused(result, 901, &["changed its mind"]);
        assert_eq!(bench.counts().1.launches, launches, "nothing runs");
        assert_eq!(host, START);
        bench.spy.take_pushes();
        // Pushed with the next run: exactly the element that was written.
        let mut sink = [0; 8];
        let args = &mut [Arg::from(&resident), Arg::write(&[8], &mut sink).unwrap()];
        bench
            .run(&[("resident", IN), ("sink", OUT)], args, |ctx, tensors| {
                ctx.task(COPY).input(tensors[0]).output(tensors[1]).submit()?;
                Ok(())
            })
            .unwrap();
        assert_eq!(sink, [10, 100, 12, 13, 14, 15, 16, 17], "{}", bench.uri);
        let pushed: Vec<_> = bench.spy.take_pushes().iter().map(|push| push.ranges.clone()).collect();
        assert_eq!(pushed, if bench.mirrors() { vec![vec![4..8]] } else { vec![] }, "{}", bench.uri);
    });
}

#[test]
fn an_orchestration_that_panics_leaves_the_device_usable() {
    everywhere(|bench| {
        let resident = bench.upload(&START);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = bench.run(&[("subject", INOUT)], &mut [Arg::from(&resident)], |ctx, tensors| {
                ctx.write(tensors[0], [0], 1)?;
                let memory = ctx.alloc::<i32>([8])?;
                ctx.task(COPY).input(tensors[0]).output(memory).submit()?;
                panic!("in the orchestration")
            });
        }));
        outcome.unwrap_err();
        assert_eq!(bench.read(&resident)[..2], [1, 11], "{}", bench.uri);
        bench.assert_works();
    });
}

// ---- handles that name nothing any more, or something elsewhere ----

/// Every access and a task are refused with `code`.
fn dead_handle(bench: &Bench, tensor: Tensor, code: u32, word: &'static str) {
    let inner = bench.clone();
    bench
        .run(&[], &mut [], move |ctx, _| {
            for touch in READS.into_iter().chain(WRITES) {
                refused(&inner, ctx, &tensor, touch, code, &[word]);
            }
            assert_refused(ctx.task(READ).input(tensor).submit(), code, &[word]);
            assert_refused(ctx.device_address(tensor), code, &[word]);
            let accesses = [Access { tensor, direction: IN, split_dim: None }];
            let predicate = Some(Predicate { tensor, comparison: Comparison::Eq, constant_bits: 0 });
            assert_refused(ctx.submit(&TaskDesc { accesses: &accesses, ..TaskDesc::default() }), code, &[word]);
            assert_refused(ctx.submit(&TaskDesc { predicate, ..TaskDesc::default() }), code, &[word]);
            assert_eq!(ctx.task_count(), 0);
            Ok(())
        })
        .unwrap();
    bench.assert_works();
}

#[test]
fn a_freed_tensor_is_refused() {
    everywhere(|bench| {
        let resident = bench.upload(&START);
        let tensor = resident.tensor();
        // Any owner keeps it alive.
        let owner = resident.slice(0, 0..1).unwrap();
        drop(resident);
        bench.run(&[], &mut [], move |ctx, _| ctx.read::<i32>(tensor, [3]).map(|value| assert_eq!(value, 13))).unwrap();
        drop(owner);
        dead_handle(bench, tensor, 301, "freed");
    });
}

#[test]
fn a_tensor_of_another_device_is_refused() {
    everywhere(|bench| {
        let other = Bench::open(bench.uri);
        let foreign = other.upload(&START);
        dead_handle(bench, foreign.tensor(), 302, "another device");
        let result = bench.run(&[("subject", IN)], &mut [Arg::from(&foreign)], |_, _| Ok(()));
        assert_refused(result, 302, &["`subject`"]);
        assert_refused(bench.device.read::<i32>(&foreign), 302, &["another device"]);
        assert_refused(bench.device.write(&foreign, &START), 302, &["another device"]);
        assert_eq!(other.read(&foreign), START);
    });
}

#[test]
fn staged_tensors_and_graph_memory_end_with_their_run() {
    everywhere(|bench| {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&kept);
        let args = &mut [Arg::read(&[8], &START).unwrap()];
        bench
            .run(&[("subject", IN)], args, move |ctx, tensors| {
                keep.lock().unwrap().extend([tensors[0], ctx.alloc::<i32>([8])?]);
                Ok(())
            })
            .unwrap();
        let kept = kept.lock().unwrap().clone();
        for tensor in kept {
            dead_handle(bench, tensor, 304, "another run");
        }
    });
}

// ---- what is given to an access ----

#[test]
fn wrong_indices_types_and_counts_are_refused() {
    every_subject(&SUBJECTS, |subject, bench, ctx, tensor, _| {
        let matrix = tensor.reshape(&[2, 4])?.slice(1, 0..3)?;
        let before = bench.counts();
        let name = subject.name();
        assert_refused(ctx.read::<i32>(matrix, [0, 3]), 102, &["[0, 3]", "[2, 3]", name]);
        assert_refused(ctx.read::<i32>(matrix, [2, 0]), 102, &["[2, 0]", name]);
        assert_refused(ctx.read::<i32>(matrix, [0]), 102, &["[0]", "2 dimensions"]);
        assert_refused(ctx.read::<i32>(matrix, [0, 0, 0]), 102, &["2 dimensions"]);
        assert_refused(ctx.read::<i32>(matrix, [u64::MAX, u64::MAX]), 102, &[name]);
        assert_refused(ctx.read_bits(matrix, [0, 3]), 102, &[name]);
        assert_refused(ctx.write(matrix, [0, 3], 1), 102, &[name]);
        assert_refused(ctx.write_bits(matrix, [0], 1), 102, &[name]);
        assert_refused(ctx.read::<f32>(matrix, [0, 0]), 104, &["i32", "f32", name]);
        assert_refused(ctx.read::<i64>(matrix, [0, 0]), 104, &["i64", name]);
        assert_refused(ctx.write(matrix, [0, 0], 1u32), 104, &["u32", name]);
        assert_refused(ctx.view::<i16>(matrix).map(|_| ()), 104, &["i16", name]);
        assert_refused(ctx.view_mut::<i16>(matrix).map(|_| ()), 104, &["i16", name]);
        let mut five = [7; 5];
        assert_refused(ctx.read_into(matrix, &mut five), 103, &["5", "[2, 3]"]);
        assert_refused(ctx.write_from(matrix, &five), 103, &["5", "[2, 3]"]);
        assert_eq!(five, [7; 5]);
        let repeated = tensor.slice(0, 0..1)?.broadcast(&[4])?;
        assert_refused(ctx.write_from(repeated, &[1, 2, 3, 4]), 107, &[name]);
        assert_refused(ctx.view_mut::<i32>(repeated).map(|_| ()), 107, &[name]);
        assert_eq!(bench.counts(), before, "{}", bench.uri);
        ctx.write(repeated, [3], 5)?; // one element has one value
        assert_eq!(ctx.view::<i32>(repeated)?.to_vec(), [5; 4]);
        Ok(())
    });
}

#[test]
fn arguments_that_cannot_serve_are_refused() {
    everywhere(|bench| {
        let one = [("subject", OUT)];
        let result = bench.run(&one, &mut [], |_, _| Ok(()));
        assert_refused(result, 105, &["`test`", "1", "0"]);
        let result = bench.run(&one, &mut [Arg::read(&[8], &START).unwrap()], |_, _| Ok(()));
        assert_refused(result, 106, &["`subject`", "OUT", "Arg::write"]);
        assert_refused(Arg::read(&[9], &START).map(|_| ()), 103, &["[9]", "8"]);
        assert_refused(Arg::read(&[3, 3], &START).map(|_| ()), 103, &["[3, 3]"]);
        assert_refused(Arg::read(&[1; 9], &[1i32]).map(|_| ()), 101, &["9 dimensions"]);
        assert_refused(bench.device.upload([9], &START), 103, &["[9]"]);
        assert_refused(bench.device.alloc_uninit::<i32>([0]), 109, &["0 bytes"]);
        assert_refused(bench.device.alloc_uninit::<i32>([1 << 40, 1 << 40]), 101, &["overflows"]);
        assert_refused(bench.device.alloc_uninit::<i32>([1 << 50]), 501, &["exhausted"]);
        assert_refused(HostTensor::zeros(DType::F64, &[1 << 58]), 501, &["cannot reserve"]);
        bench.assert_works();
    });
}

#[test]
fn tasks_write_only_what_the_signature_declares_by_bytes() {
    everywhere(|bench| {
        let resident = bench.upload(&START);
        let left = resident.slice(0, 0..4).unwrap();
        // The allocation is known by two arguments; only the left half may be written.
        let args = &mut [Arg::from(&resident), Arg::from(&left)];
        bench
            .run(&[("all", IN), ("left", INOUT)], args, |ctx, tensors| {
                ctx.task(FILL).output(tensors[0].slice(0, 0..4)?).scalar(1).submit()?;
                let result = ctx.task(FILL).output(tensors[0].slice(0, 3..5)?).scalar(2).submit();
                let kind = assert_refused(result, 414, &["no OUT or INOUT entry tensor covers"]);
                assert!(matches!(kind, ErrorKind::Submit { source: SubmitError::NotAnOutput { .. }, .. }), "{kind:?}");
                Ok(())
            })
            .unwrap();
        assert_eq!(bench.read(&resident), [1, 1, 1, 1, 14, 15, 16, 17], "{}", bench.uri);
        let args = &mut [Arg::read(&[8], &START).unwrap()];
        let result = bench.run(&[("subject", IN)], args, |ctx, tensors| {
            ctx.task(FILL).output(tensors[0]).scalar(2).submit().map(|_| ())
        });
        assert_refused(result, 414, &["`subject`"]);
    });
}

#[test]
fn a_task_whose_own_arguments_overlap_is_refused() {
    every_subject(&[Subject::Resident(INOUT), Subject::Staged(INOUT), Subject::Graph], |_, _, ctx, tensor, _| {
        let result = ctx.task(COPY).input(tensor.slice(0, 0..5)?).output(tensor.slice(0, 3..8)?).submit();
        let kind = assert_refused(result, 413, &["overlap", "INOUT"]);
        assert!(matches!(kind, ErrorKind::Submit { source: SubmitError::ArgumentsOverlap { .. }, .. }), "{kind:?}");
        assert_eq!(ctx.read::<i32>(tensor, [4])?, 14);
        Ok(())
    });
}

// ---- the first cause ----

#[test]
fn a_latching_orchestration_fails_with_its_first_refusal_whatever_it_returns() {
    type Refusal = fn(&mut Context<'_>, &Tensor) -> u32;
    let refusals: [Refusal; 10] = [
        |ctx, tensor| ctx.read::<i32>(tensor, [99]).unwrap_err().code(),
        |ctx, tensor| ctx.write(tensor, [99], 1).unwrap_err().code(),
        |ctx, tensor| ctx.read::<f32>(tensor, [0]).unwrap_err().code(),
        |ctx, tensor| ctx.view_mut::<f32>(tensor).unwrap_err().code(),
        |ctx, tensor| ctx.write_from(tensor, &[1]).unwrap_err().code(),
        |ctx, _| {
            let memory = ctx.alloc::<i32>([4]).unwrap();
            ctx.view::<i32>(memory).unwrap_err().code()
        },
        |ctx, _| ctx.scope_end().unwrap_err().code(),
        |ctx, tensor| ctx.task(COPY).input(tensor).submit().unwrap_err().code(),
        |ctx, _| ctx.alloc::<i32>([1 << 40, 1 << 40]).unwrap_err().code(),
        |ctx, tensor| ctx.join().only_if(tensor, Comparison::Eq, 0i32).submit().unwrap_err().code(),
    ];
    everywhere(|bench| {
        for refusal in refusals {
            let code = Arc::new(Mutex::new(0));
            let seen = Arc::clone(&code);
            let args = &mut [Arg::read(&[8], &START).unwrap()];
            let result = bench.run(&[("subject", IN)], args, move |ctx, tensors| {
                ctx.latch_errors();
                let first = refusal(ctx, &tensors[0]);
                *seen.lock().unwrap() = first;
                // Whatever comes later is refused with the first cause and does nothing.
                assert_eq!(ctx.read::<i32>(tensors[0], [0]).unwrap_err().code(), first);
                assert_eq!(ctx.read::<i32>(tensors[0], [0, 0]).unwrap_err().code(), first);
                assert_eq!(ctx.write(tensors[0], [0], 1).unwrap_err().code(), first);
                assert_eq!(ctx.task(READ).input(tensors[0]).submit().unwrap_err().code(), first);
                assert_eq!(ctx.alloc::<i32>([1]).unwrap_err().code(), first);
                assert_eq!(ctx.scope_begin().unwrap_err().code(), first);
                assert_eq!(ctx.task_count(), 0);
                Ok(())
            });
            let code = *code.lock().unwrap();
            assert_eq!(result.unwrap_err().code(), code, "{}", bench.uri);
            bench.assert_works();
        }
    });
}

#[test]
fn a_handle_of_another_run_is_latched_like_any_refusal() {
    everywhere(|bench| {
        let kept = Arc::new(Mutex::new(None));
        let keep = Arc::clone(&kept);
        let args = &mut [Arg::read(&[8], &START).unwrap()];
        bench
            .run(&[("subject", IN)], args, move |_, tensors| {
                *keep.lock().unwrap() = Some(tensors[0]);
                Ok(())
            })
            .unwrap();
        let stale = kept.lock().unwrap().unwrap();
        let result = bench.run(&[], &mut [], move |ctx, _| {
            ctx.latch_errors();
            let _ = ctx.read::<i32>(stale, [0]);
            let _ = ctx.scope_end();
            Ok(())
        });
        assert_refused(result, 304, &["another run"]);
    });
}

#[test]
fn without_latching_an_orchestration_may_recover() {
    every_subject(&SUBJECTS, |_, _, ctx, tensor, sink| {
        assert!(ctx.read::<i32>(tensor, [8]).is_err());
        assert!(ctx.task(COPY).input(tensor).submit().is_err());
        assert_eq!(ctx.read::<i32>(tensor, [7])?, 17);
        ctx.task(COPY).input(tensor).output(sink).submit()?;
        Ok(())
    });
}

// ---- one orchestration at a time ----

#[test]
fn an_orchestration_cannot_start_runs_or_transfers_of_its_own_device() {
    everywhere(|bench| {
        let resident = bench.upload(&START);
        let (inner, owned) = (bench.clone(), resident.clone());
        bench
            .run(&[("subject", INOUT)], &mut [Arg::from(&resident)], move |ctx, tensors| {
                ctx.task(FILL).output(tensors[0]).scalar(1).submit()?;
                let before = inner.counts();
                let kind = assert_refused(inner.run(&[], &mut [], |_, _| Ok(())), 306, &["this very thread"]);
                assert!(matches!(kind, ErrorKind::Turn(_)), "{kind:?}");
                assert_refused(inner.device.read::<i32>(&owned), 306, &[]);
                assert_refused(inner.device.write(&owned, &OTHER), 306, &[]);
                assert_refused(inner.device.freeze(&callable(&[], |_, _| Ok(())), &mut [], &[]), 306, &[]);
                assert_eq!(inner.counts(), before);
                // Allocating and dropping wait for nobody.
                drop(inner.device.alloc_zeroed::<i32>([4])?);
                Ok(())
            })
            .unwrap();
        assert_eq!(bench.read(&resident), [1; 8], "{}", bench.uri);
    });
}

#[test]
fn an_orchestration_may_use_another_device() {
    everywhere(|bench| {
        let other = Bench::open(bench.uri);
        let there = other.upload(&OTHER);
        let here = bench.upload(&START);
        bench
            .run(&[("subject", INOUT)], &mut [Arg::from(&here)], move |ctx, tensors| {
                let args = &mut [Arg::from(&there)];
                other.run(&[("there", INOUT)], args, |ctx, tensors| {
                    ctx.task(ADD).inout(tensors[0]).scalar(100).submit().map(|_| ())
                })?;
                let values = other.device.read::<i32>(&there)?;
                ctx.write_from(tensors[0], &values)
            })
            .unwrap();
        assert_eq!(bench.read(&here), OTHER.map(|value| value + 100), "{}", bench.uri);
    });
}

#[test]
fn another_threads_transfer_waits_for_the_run() {
    everywhere(|bench| {
        let resident = bench.upload(&START);
        let order = Arc::new(Mutex::new(Vec::new()));
        let asked = Arc::new(AtomicBool::new(false));
        let thread = Mutex::new(None);
        let (inner, owned, log) = (bench.clone(), resident.clone(), Arc::clone(&order));
        let thread = Arc::new(thread);
        let spawned = Arc::clone(&thread);
        bench
            .run(&[("subject", INOUT)], &mut [Arg::from(&resident)], move |ctx, tensors| {
                let (device, owned, log_there, asked_there) =
                    (inner.device.clone(), owned.clone(), Arc::clone(&log), Arc::clone(&asked));
                *spawned.lock().unwrap() = Some(std::thread::spawn(move || {
                    asked_there.store(true, SeqCst);
                    device.write(&owned, &OTHER).unwrap();
                    log_there.lock().unwrap().push("upload");
                }));
                while !asked.load(SeqCst) {
                    std::thread::yield_now();
                }
                for _ in 0..100 {
                    std::thread::yield_now();
                    assert_eq!(ctx.view::<i32>(tensors[0])?.to_vec(), START);
                }
                ctx.task(ADD).inout(tensors[0]).scalar(1).submit()?;
                log.lock().unwrap().push("built");
                Ok(())
            })
            .unwrap();
        let handle = thread.lock().unwrap().take().unwrap();
        handle.join().unwrap();
        assert_eq!(*order.lock().unwrap(), ["built", "upload"]);
        assert_eq!(bench.read(&resident), OTHER, "{}: the upload came after the run", bench.uri);
    });
}

#[test]
fn transfers_make_the_bytes_of_a_view_stale_and_carry_what_the_host_wrote() {
    everywhere(|bench| {
        let resident = bench.upload(&START);
        let params = [("subject", INOUT)];
        let touch = |expected: [i32; 8], index: u64, value: i32| {
            bench
                .run(&params, &mut [Arg::from(&resident)], move |ctx, tensors| {
                    assert_eq!(ctx.view::<i32>(tensors[0])?.to_vec(), expected);
                    ctx.write(tensors[0], [index], value)
                })
                .unwrap();
        };
        touch(START, 0, 100);
        bench.device.write(&resident.slice(0, 4..6).unwrap(), &[40, 50]).unwrap();
        touch([100, 11, 12, 13, 40, 50, 16, 17], 5, 55);
        assert_eq!(bench.read(&resident), [100, 11, 12, 13, 40, 55, 16, 17], "{}", bench.uri);
        // The last write is replaced by an upload before anything pushed it.
        let failing = bench.run(&params, &mut [Arg::from(&resident)], |ctx, tensors| {
            ctx.write(tensors[0], [6], 600)?;
            ctx.write(tensors[0], [7], 700)?;
            Err(Error::orchestration("stop"))
        });
        assert_eq!(failing.unwrap_err().code(), 901);
        bench.device.write(&resident.slice(0, 6..7).unwrap(), &[60]).unwrap();
        touch([100, 11, 12, 13, 40, 55, 60, 700], 0, 1);
        assert_eq!(bench.read(&resident), [1, 11, 12, 13, 40, 55, 60, 700], "{}", bench.uri);
    });
}

#[test]
fn fills_and_copies_obey_the_same_rows() {
    everywhere(|bench| {
        let (source, target) = (bench.upload(&START), bench.upload(&OTHER));
        let args = || [Arg::from(&source), Arg::from(&target)];
        let params = [("source", INOUT), ("target", INOUT)];
        // Both have views; the host has written both, and nothing has pushed that yet.
        let failing = bench.run(&params, &mut args(), |ctx, tensors| {
            for tensor in tensors {
                ctx.view::<i32>(tensor)?;
                ctx.write(tensor, [1], 100)?;
                ctx.write(tensor, [6], 600)?;
            }
            Err(Error::orchestration("stop"))
        });
        assert_refused(failing, 901, &[]);
        bench.device.copy(&source.slice(0, 0..3).unwrap(), &target.slice(0, 5..8).unwrap()).unwrap();
        bench.device.fill(&target.slice(0, 2..4).unwrap(), 0x0102_0304).unwrap();
        bench.device.fill(&target.slice(0, 4..5).unwrap(), 0).unwrap();
        let expected = [-1, 100, 0x0102_0304, 0x0102_0304, 0, 10, 100, 12];
        bench
            .run(&params, &mut args(), move |ctx, tensors| {
                assert_eq!(ctx.view::<i32>(tensors[0])?.to_vec(), [10, 100, 12, 13, 14, 15, 600, 17]);
                assert_eq!(ctx.view::<i32>(tensors[1])?.to_vec(), expected);
                Ok(())
            })
            .unwrap();
        assert_eq!(bench.read(&target), expected, "{}", bench.uri);
        // What cannot be: another device's tensor on either side, repeated elements, bytes without a value.
        let other = Bench::open(bench.uri);
        let foreign = other.upload(&START);
        assert_refused(bench.device.copy(&foreign, &target), 302, &["another device"]);
        assert_refused(bench.device.copy(&source, &foreign), 302, &["another device"]);
        assert_refused(bench.device.fill(&foreign, 1), 302, &["another device"]);
        let repeated = target.slice(0, 0..1).unwrap().broadcast(&[1 << 45]).unwrap();
        assert_refused(bench.device.fill(&repeated, 1), 107, &[]);
        assert_refused(bench.device.copy(&repeated, &repeated), 107, &[]);
        assert_refused(bench.device.copy(&source, &target.slice(0, 0..7).unwrap()), 103, &[]);
        assert_refused(bench.device.copy(&source, &target.reshape(&[2, 4]).unwrap()), 108, &["[8]", "[2, 4]"]);
        assert_refused(bench.device.fill(&target, 1.0f32), 104, &["i32", "f32"]);
        let uninit = bench.device.alloc_uninit::<i32>([8]).unwrap();
        let name = format!("`{}`", bench.device.resolve_address(uninit.device_address(), 32).unwrap().0);
        assert_refused(bench.device.copy(&uninit, &target), 204, &["no value", &name]);
        assert_eq!(bench.read(&target), expected);
        bench.device.copy(&target, &uninit).unwrap();
        assert_eq!(bench.read(&uninit), expected, "{}", bench.uri);
        let (inner, there) = (bench.clone(), source.clone());
        bench
            .run(&[], &mut [], move |_, _| {
                assert_refused(inner.device.fill(&there, 0), 306, &[]);
                assert_refused(inner.device.copy(&there, &uninit), 306, &[]);
                assert_refused(inner.device.prefetch(&there), 306, &[]);
                Ok(())
            })
            .unwrap();
    });
}

// ---- images ----

#[test]
fn an_image_carries_what_its_orchestration_wrote() {
    everywhere(|bench| {
        let params = [("subject", INOUT), ("sink", OUT), ("staged", INOUT)];
        let callable = callable(&params, |ctx, tensors| {
            let memory = ctx.alloc::<i32>([8])?;
            ctx.write_from(memory, &OTHER)?;
            ctx.write(tensors[0], [1], 111)?;
            ctx.write(tensors[2], [2], 222)?;
            ctx.task(ADD).inout(tensors[0].slice(0, 2..3)?).scalar(1000).submit()?;
            ctx.task(SUM).input(tensors[0]).input(memory).output(tensors[1]).submit()?;
            Ok(())
        });
        let first = bench.upload(&START);
        let (mut sink, mut staged) = ([0; 8], START);
        let image = {
            let args =
                &mut [Arg::from(&first), Arg::write(&[8], &mut sink).unwrap(), Arg::write(&[8], &mut staged).unwrap()];
            bench.device.freeze(&callable, args, &[]).unwrap()
        };
        assert_eq!((sink, staged), ([0; 8], START), "freezing runs nothing");
        let second = bench.upload(&[0; 8]);
        // The target has a view with writes of its own that were not pushed yet: the image's come after them.
        let failing = bench.run(&[("subject", INOUT)], &mut [Arg::from(&second)], |ctx, tensors| {
            assert_eq!(ctx.view::<i32>(tensors[0])?.to_vec(), [0; 8]);
            ctx.write(tensors[0], [0], 5)?;
            ctx.write(tensors[0], [1], 6)?;
            Err(Error::orchestration("stop"))
        });
        assert_eq!(failing.unwrap_err().code(), 901);
        {
            let args =
                &mut [Arg::from(&second), Arg::write(&[8], &mut sink).unwrap(), Arg::write(&[8], &mut staged).unwrap()];
            bench.device.run_image(image, &callable, args).unwrap();
        }
        let expected = [5, 111, 1000, 0, 0, 0, 0, 0];
        assert_eq!(sink, std::array::from_fn(|i| expected[i] + OTHER[i]), "{}", bench.uri);
        assert_eq!(
            staged,
            [10, 11, 222, 13, 14, 15, 16, 17],
            "{}: what the orchestration wrote is returned",
            bench.uri
        );
        // The view of the next run sees it as well.
        let args = &mut [Arg::from(&second)];
        bench
            .run(&[("subject", INOUT)], args, move |ctx, tensors| {
                assert_eq!(ctx.view::<i32>(tensors[0])?.to_vec(), expected);
                Ok(())
            })
            .unwrap();
        assert_eq!(bench.read(&second), expected, "{}", bench.uri);
    });
}

#[test]
fn an_image_gives_bytes_without_a_value_one() {
    everywhere(|bench| {
        let callable = callable(&[("subject", INOUT)], |ctx, tensors| ctx.write_from(tensors[0], &START));
        let first = bench.device.alloc_uninit::<i32>([8]).unwrap();
        let image = bench.device.freeze(&callable, &mut [Arg::from(&first)], &[]).unwrap();
        assert_eq!(bench.read(&first), START, "{}: it stays written", bench.uri);
        let second = bench.device.alloc_uninit::<i32>([8]).unwrap();
        bench.device.run_image(image, &callable, &mut [Arg::from(&second)]).unwrap();
        assert_eq!(bench.read(&second), START, "{}", bench.uri);
    });
}

// ---- settings ----

#[test]
fn small_chunks_give_the_same_values() {
    for (chunk_bytes, whole_fill_max_bytes) in [(0, 0), (8, 0), (1, 16), (24, 0), (u64::MAX, 0), (64, u64::MAX)] {
        for uri in PROFILES {
            let mut settings = MemorySettings::default();
            settings.chunk_bytes = chunk_bytes;
            settings.whole_fill_max_bytes = whole_fill_max_bytes;
            settings.poison_uninit = true;
            let bench = Bench::open_with(uri, settings);
            let resident: Resident = bench.device.alloc(DType::I32, [64], Init::Uninit).unwrap();
            let values: Vec<i32> = (0..64).collect();
            bench.device.write(&resident.step_by(0, 2).unwrap(), &values[..32]).unwrap();
            bench
                .run(&[("subject", INOUT)], &mut [Arg::from(&resident)], |ctx, tensors| {
                    assert_refused(ctx.read::<i32>(tensors[0], [1]), 204, &[]);
                    assert_eq!(ctx.read::<i32>(tensors[0], [62])?, 31);
                    // What has a value is here now, its neighbours without one are not.
                    assert_refused(ctx.read::<i32>(tensors[0], [63]), 204, &[]);
                    assert_refused(ctx.read::<i32>(tensors[0], [61]), 204, &[]);
                    assert_eq!(ctx.read::<i32>(tensors[0], [60])?, 30);
                    ctx.write_from(tensors[0].slice(0, 1..64)?.step_by(0, 2)?, &[-1; 32])?;
                    assert_eq!(ctx.view::<i32>(tensors[0].slice(0, 6..10)?)?.to_vec(), [3, -1, 4, -1]);
                    ctx.task(ADD).inout(tensors[0].slice(0, 0..32)?).scalar(100).submit()?;
                    Ok(())
                })
                .unwrap();
            let expected = |i: i32| (if i % 2 == 0 { i / 2 } else { -1 }) + if i < 32 { 100 } else { 0 };
            assert_eq!(bench.read(&resident), (0..64).map(expected).collect::<Vec<_>>(), "{uri}");
        }
    }
}

#[test]
fn devices_report_their_own_name() {
    for uri in PROFILES {
        assert_eq!(Device::open(uri).unwrap().info().uri.to_string(), uri);
    }
    assert_refused(Device::open("sim:a9"), 502, &["sim:a9", "sim:a5"]);
    assert_refused(Device::open("cuda"), 502, &["cuda", "sim"]);
    assert_refused(Device::open(":"), 502, &["not a device URI"]);
}
