//! What has been reported in the field against systems of this kind, as tests: the rows that one run at a time can show.
//!
//! | row | test |
//! |---|---|
//! | V1 V2 V3 V4 V5 V6 V10 V11 | `field_v1_…` … `field_v11_…`: host views |
//! | C1 C2 C4 C6 C9 C11 C13 | `field_c1_…` … `field_c13_…`: coherence |
//! | A1 A2 A3 A6 A7 | `field_a1_…` … `field_a7_…`: lifetime |
//! | G1 G3 G4 G10 | `field_g1_…` … `field_g10_…`: graph (G5, G11: see the graph builder's and the simulator's own tests) |
//! | S1 S3 S4 S5 S6 S7 S8 S10 S11 S12 | `field_s1_…` … `field_s12_…`: views and strides (S2: `contract`, wrong arguments) |
//! | K1 K6 | `field_k1_…`, `field_k6_…`: capacity |
//! | D1 D2 | `field_d1_…`, `field_d2_…`: diagnostics (D7 does not compile: see the documentation of the context) |
//! | P3 P5 P7 P8 | `field_p3_…` … `field_p8_…`: interface (P1: a staged argument is always a copy) |
//!
//! Every test runs on every profile, so in every view mechanism.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use common::*;
use periscope::{Arg, Error, HostTensor, Mechanism, PodElement, Resident, Tensor};
use periscope_hal::DeviceOp;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn mechanism(resident: &Resident) -> Mechanism {
    resident.view_report().expect("touched").mechanism
}

// ---- host views ----

#[test]
fn field_v1_mapped_set_is_accessed_set() {
    everywhere(|bench| {
        let large: Vec<_> = (0..19).map(|_| bench.device.alloc_uninit::<f32>([GIB / 2]).unwrap()).collect();
        let control = bench.upload(&[3, 1, 2]);
        let names: Vec<String> = (0..19).map(|i| format!("large{i}")).collect();
        let mut params: Vec<_> = names.iter().map(|name| (name.as_str(), IN)).collect();
        params.push(("control", IN));
        for run in 0..3 {
            let before = bench.counts();
            let mut args: Vec<_> = large.iter().chain([&control]).map(Arg::from).collect();
            let report = bench
                .run(&params, &mut args, |ctx, tensors| {
                    assert_eq!(ctx.read::<i32>(tensors[19], [0])?, 3);
                    Ok(())
                })
                .unwrap();
            let (memory, device) = (bench.counts().0 - before.0, bench.counts().1);
            assert_eq!(memory.established, u64::from(run == 0), "{}", bench.uri);
            assert!(memory.maps + memory.map_refusals <= u64::from(run == 0));
            assert_eq!(memory.releases, 0, "the end of a run releases nothing");
            let copied = device.bytes_in + device.bytes_out - before.1.bytes_in - before.1.bytes_out;
            assert_eq!(copied, if bench.mirrors() && run == 0 { 12 } else { 0 }, "{}", bench.uri);
            assert_eq!(device.pushes, before.1.pushes);
            let touched: Vec<_> = report.tensor_views.iter().map(|view| view.tensor.as_str()).collect();
            assert_eq!(touched, ["control"]);
        }
        assert!(large.iter().all(|tensor| tensor.view_report().is_none()));
    });
}

#[test]
fn field_v2_one_view_per_allocation_shared_and_kept() {
    everywhere(|bench| {
        let parent = bench.upload(&(0..64).collect::<Vec<_>>());
        let (left, right) = (parent.slice(0, 0..32).unwrap(), parent.slice(0, 32..64).unwrap());
        for _ in 0..3 {
            let args = &mut [Arg::from(&left), Arg::from(&right), Arg::from(&parent)];
            bench
                .run(&[("left", IN), ("right", IN), ("parent", IN)], args, |ctx, tensors| {
                    for i in 0..32 {
                        assert_eq!(ctx.read::<i32>(tensors[0], [i])?, i as i32);
                        assert_eq!(ctx.read::<i32>(tensors[1], [i])?, 32 + i as i32);
                        assert_eq!(ctx.read::<i32>(tensors[2].slice(0, 7..40)?, [i])?, 7 + i as i32);
                    }
                    Ok(())
                })
                .unwrap();
        }
        let counts = bench.device.counts();
        assert_eq!((counts.established, counts.releases, counts.refreshes), (1, 0, 0), "{}", bench.uri);
        assert_eq!(counts.maps + counts.map_refusals, 1);
        assert_eq!(counts.fills, u64::from(bench.mirrors()));
    });
}

#[test]
fn field_v3_a_refused_allocation_is_served_by_copies_and_others_stay_mapped() {
    let bench = Bench::open("sim:a2a3-64k");
    let values: Vec<i32> = (0..MIB as i32).collect();
    let small = bench.upload(&values[..256]);
    let large = bench.upload(&values);
    for run in 0..3 {
        let args = &mut [Arg::from(&small), Arg::from(&large)];
        bench
            .run(&[("small", INOUT), ("large", INOUT)], args, move |ctx, tensors| {
                for tensor in tensors {
                    assert_eq!(ctx.read::<i32>(tensor, [200])?, 200 + run);
                    ctx.write(tensor, [100], -run)?;
                    ctx.task(ADD).inout(tensor.slice(0, 200..201)?).scalar(1).submit()?;
                }
                Ok(())
            })
            .unwrap();
    }
    assert_eq!(mechanism(&small), Mechanism::Mirrored);
    assert!(small.view_report().unwrap().reason.contains("2 MiB"), "{:?}", small.view_report());
    assert_eq!(mechanism(&large), Mechanism::Mapped);
    assert_eq!(bench.read(&small)[..], bench.read(&large)[..256]);
    let counts = bench.device.counts();
    assert_eq!((counts.map_refusals, counts.maps), (1, 1), "the decision is taken once per allocation");
}

#[test]
fn field_v4_the_returned_address_is_used_with_the_offset_inside() {
    everywhere(|bench| {
        // Device addresses mean nothing to the host on four of the five profiles: using one would fault.
        let resident = bench.upload(&(0..5000).collect::<Vec<_>>());
        let view = resident.slice(0, 4097..4100).unwrap();
        assert_eq!(view.device_address(), resident.device_address() + 4 * 4097);
        bench
            .run(&[("view", INOUT)], &mut [Arg::from(&view)], |ctx, tensors| {
                assert_eq!(ctx.view::<i32>(tensors[0])?.to_vec(), [4097, 4098, 4099]);
                ctx.write(tensors[0], [1], -1)
            })
            .unwrap();
        let values = bench.read(&resident);
        assert_eq!(values[4096..4101], [4096, 4097, -1, 4099, 4100], "{}", bench.uri);
    });
}

#[test]
fn field_v5_two_small_allocations_on_a_page_are_independent() {
    everywhere(|bench| {
        let (a, b) = (bench.upload(&[1; 10]), bench.upload(&[2; 10]));
        let params = [("a", INOUT), ("b", INOUT)];
        bench
            .run(&params, &mut [Arg::from(&a), Arg::from(&b)], |ctx, tensors| {
                ctx.write_from(tensors[0], &[3; 10])?;
                assert_eq!(ctx.view::<i32>(tensors[1])?.to_vec(), [2; 10]);
                ctx.write_from(tensors[1], &[4; 10])?;
                assert_eq!(ctx.view::<i32>(tensors[0])?.to_vec(), [3; 10]);
                for tensor in tensors {
                    assert_refused(ctx.read::<i32>(tensor, [10]), 102, &[]);
                }
                Ok(())
            })
            .unwrap();
        drop(a);
        assert_eq!(bench.device.counts().releases, 1);
        bench
            .run(&params[1..], &mut [Arg::from(&b)], |ctx, tensors| {
                assert_eq!(ctx.view::<i32>(tensors[0])?.to_vec(), [4; 10]);
                ctx.write(tensors[0], [9], 5)
            })
            .unwrap();
        assert_eq!(bench.read(&b), [4, 4, 4, 4, 4, 4, 4, 4, 4, 5], "{}", bench.uri);
    });
}

#[test]
fn field_v6_odd_sizes_are_rounded_inside_the_view_only() {
    everywhere(|bench| {
        for len in [1u64, 3, 25, 1023, 1025, 4095, 4097] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let resident = bench.device.upload([len], &bytes).unwrap();
            let neighbour = bench.device.upload([len], &bytes).unwrap();
            bench
                .run(&[("odd", INOUT)], &mut [Arg::from(&resident)], move |ctx, tensors| {
                    assert_eq!(ctx.read::<u8>(tensors[0], [len - 1])?, (len - 1) as u8);
                    assert_refused(ctx.read::<u8>(tensors[0], [len]), 102, &["`odd`"]);
                    assert_refused(ctx.write(tensors[0], [len], 1u8), 102, &["`odd`"]);
                    ctx.write(tensors[0], [len - 1], 77u8)
                })
                .unwrap();
            assert_eq!(bench.device.read::<u8>(&resident).unwrap().last(), Some(&77), "{} {len}", bench.uri);
            assert_eq!(bench.device.read::<u8>(&neighbour).unwrap(), bytes);
        }
    });
}

#[test]
fn field_v10_a_hundred_thousand_accesses_make_one_mapping() {
    everywhere(|bench| {
        let resident = bench.upload(&[0; 1000]);
        bench
            .run(&[("subject", INOUT)], &mut [Arg::from(&resident)], |ctx, tensors| {
                for round in 0..50 {
                    for i in 0..1000 {
                        ctx.write(tensors[0], [i], round)?;
                        assert_eq!(ctx.read::<i32>(tensors[0], [i])?, round);
                    }
                }
                Ok(())
            })
            .unwrap();
        let counts = bench.device.counts();
        assert_eq!((counts.established, counts.maps + counts.map_refusals), (1, 1), "{}", bench.uri);
        assert!(counts.windows <= 1 && counts.fills <= 1 && counts.pushes <= 1, "{counts:?}");
        let report = resident.view_report().unwrap();
        assert_eq!((report.reads, report.writes), (50_000, 50_000), "{}", bench.uri);
    });
}

#[test]
fn field_v11_the_platforms_answer_decides_not_what_it_says_of_itself() {
    for uri in PROFILES {
        for failing in [false, true] {
            let bench = Bench::open(uri);
            let resident = bench.upload(&[1, 2, 3]);
            if failing {
                bench.spy.fail(DeviceOp::Map, 1);
            } else {
                bench.spy.refuse_maps();
            }
            for expected in [2, 20] {
                bench
                    .run(&[("subject", INOUT)], &mut [Arg::from(&resident)], move |ctx, tensors| {
                        assert_eq!(ctx.read::<i32>(tensors[0], [1])?, expected);
                        ctx.write(tensors[0], [1], 10)?;
                        ctx.task(ADD).inout(tensors[0].slice(0, 0..1)?).scalar(1).submit()?;
                        Err::<(), _>(Error::orchestration("not yet")).or(Ok(()))
                    })
                    .unwrap();
                bench.device.write(&resident.slice(0, 1..2).unwrap(), &[20]).unwrap();
            }
            assert_eq!(mechanism(&resident), Mechanism::Mirrored, "{uri}");
            assert_eq!(bench.read(&resident), [3, 20, 3], "{uri}");
            assert_eq!((bench.device.counts().map_refusals, bench.device.counts().maps), (1, 0), "asked once");
            drop(resident);
            let counts = bench.device.counts();
            assert_eq!((counts.releases, counts.unmaps, counts.quarantined), (1, 0, 0), "nothing to unmap");
            bench.assert_works();
        }
    }
}

// ---- coherence ----

#[test]
fn field_c1_every_write_is_in_the_very_next_run() {
    everywhere(|bench| {
        let resident = bench.upload(&[0; 16]);
        for round in 1..20 {
            let mut sink = [0; 16];
            let args = &mut [Arg::from(&resident), Arg::write(&[16], &mut sink).unwrap()];
            bench
                .run(&[("subject", INOUT), ("sink", OUT)], args, move |ctx, tensors| {
                    ctx.view_mut::<i32>(tensors[0].slice(0, 0..4)?)?.fill(round);
                    ctx.write(tensors[0], [round as u64 % 8 + 4], round)?;
                    ctx.task(COPY).input(tensors[0]).output(tensors[1]).submit()?;
                    Ok(())
                })
                .unwrap();
            assert_eq!(sink[..4], [round; 4], "{}", bench.uri);
            assert_eq!(sink[round as usize % 8 + 4], round, "{}", bench.uri);
            assert_eq!(bench.read(&resident), sink);
        }
    });
}

#[test]
fn field_c2_two_tensors_over_the_same_bytes_agree() {
    everywhere(|bench| {
        let parent = bench.upload(&(0..12).collect::<Vec<_>>());
        let matrix = parent.reshape(&[3, 4]).unwrap();
        let column = matrix.index(1, 2).unwrap();
        let args = &mut [Arg::from(&parent), Arg::from(&matrix), Arg::from(&column)];
        bench
            .run(&[("parent", INOUT), ("matrix", INOUT), ("column", INOUT)], args, |ctx, tensors| {
                let (parent, matrix, column) = (tensors[0], tensors[1], tensors[2]);
                ctx.write(column, [1], 100)?;
                assert_eq!(ctx.read::<i32>(matrix, [1, 2])?, 100);
                assert_eq!(ctx.read::<i32>(parent, [6])?, 100);
                ctx.write_from(parent.slice(0, 8..12)?, &[1, 2, 3, 4])?;
                assert_eq!(ctx.view::<i32>(column)?.to_vec(), [2, 100, 3]);
                ctx.view_mut::<i32>(matrix.transpose(0, 1)?)?.set(&[2, 0], 7).unwrap();
                assert_eq!(ctx.read_bits(column, [0])?, 7);
                Ok(())
            })
            .unwrap();
        assert_eq!(bench.read(&parent), [0, 1, 7, 3, 4, 5, 100, 7, 1, 2, 3, 4], "{}", bench.uri);
    });
}

#[test]
fn field_c4_kernel_writes_through_one_view_are_read_through_another() {
    everywhere(|bench| {
        let parent = bench.upload(&[0; 12]);
        let args = || [Arg::from(&parent)];
        // The view is established and filled before.
        let read = |expected: [i32; 12]| {
            bench
                .run(&[("parent", IN)], &mut args(), move |ctx, tensors| {
                    assert_eq!(ctx.view::<i32>(tensors[0].slice(0, 3..9)?)?.to_vec(), expected[3..9]);
                    assert_eq!(ctx.view::<i32>(tensors[0])?.to_vec(), expected);
                    let mut columns = [0; 12];
                    ctx.read_into(tensors[0].reshape(&[3, 4])?.transpose(0, 1)?, &mut columns)?;
                    assert_eq!(columns, std::array::from_fn(|i| expected[i % 3 * 4 + i / 3]));
                    Ok(())
                })
                .unwrap();
        };
        read([0; 12]);
        bench
            .run(&[("parent", INOUT)], &mut args(), |ctx, tensors| {
                let tile = tensors[0].reshape(&[3, 4])?.slice(0, 1..3)?.slice(1, 1..3)?;
                ctx.task(FILL).output(tile).scalar(9).submit()?;
                Ok(())
            })
            .unwrap();
        read([0, 0, 0, 0, 0, 9, 9, 0, 0, 9, 9, 0]);
        if bench.mirrors() {
            let counts = bench.device.counts();
            assert_eq!((counts.fills, counts.refreshes), (1, 1), "{}", bench.uri);
            assert_eq!(counts.filled_bytes, 48 + 16, "only what the tile covers is copied again");
        }
    });
}

#[test]
fn field_c6_a_write_moves_exactly_its_bytes() {
    everywhere(|bench| {
        let resident = bench.upload(&[0; 4096]);
        let expected = if bench.mirrors() { 1 } else { 0 };
        for (index, first_byte) in [(1000u64, 4000u64), (0, 0), (4095, 16380)] {
            bench.spy.take_pushes();
            let report = bench
                .run(&[("subject", INOUT)], &mut [Arg::from(&resident)], move |ctx, tensors| {
                    ctx.write(tensors[0], [index], 5)
                })
                .unwrap();
            assert_eq!(report.bytes.h2d, 4 * expected, "{}", bench.uri);
            assert_eq!(report.bytes.d2h, 0, "a write fills nothing");
            assert_eq!(report.views.pushes, expected);
            let ranges: Vec<_> = bench.spy.take_pushes().iter().flat_map(|push| push.ranges.clone()).collect();
            assert_eq!(ranges.len(), usize::from(bench.mirrors()));
            assert!(ranges.iter().all(|range| *range == (first_byte..first_byte + 4)), "{}: {ranges:?}", bench.uri);
        }
        // Writes here and there are one transfer of exactly their ranges.
        bench
            .run(&[("subject", INOUT)], &mut [Arg::from(&resident)], |ctx, tensors| {
                for index in [2000, 10, 11, 3000] {
                    ctx.write(tensors[0], [index], 6)?;
                }
                Ok(())
            })
            .unwrap();
        let pushes = bench.spy.take_pushes();
        let ranges: Vec<_> = pushes.iter().map(|push| push.ranges.clone()).collect();
        assert_eq!(ranges, if bench.mirrors() { vec![vec![40..48, 8000..8004, 12000..12004]] } else { vec![] });
        let values = bench.read(&resident);
        assert_eq!(values.iter().filter(|&&value| value != 0).count(), 7, "{}", bench.uri);
        // Nothing written, nothing pushed.
        let report = bench.run(&[("subject", INOUT)], &mut [Arg::from(&resident)], |_, _| Ok(())).unwrap();
        assert_eq!((report.bytes.h2d, report.bytes.d2h), (0, 0));
    });
}

#[test]
fn field_c9_after_a_run_the_host_reads_what_the_device_left() {
    everywhere(|bench| {
        let resident = bench.upload(&[0; 1024]);
        for round in 1..100 {
            bench
                .run(&[("subject", INOUT)], &mut [Arg::from(&resident)], move |ctx, tensors| {
                    assert_eq!(ctx.view::<i32>(tensors[0])?.to_vec(), [round - 1; 1024]);
                    for part in 0..4 {
                        ctx.task(ADD).inout(tensors[0].slice(0, part * 256..part * 256 + 256)?).scalar(1).submit()?;
                    }
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(bench.read(&resident), [99; 1024], "{}", bench.uri);
    });
}

#[test]
fn field_c11_resident_state_carries_between_runs() {
    everywhere(|bench| {
        let state = bench.upload(&[1, 1]);
        let uploaded = bench.counts().1.bytes_in;
        for round in 1..=10 {
            // An IN tensor may be written by the orchestrator; the next run finds that too.
            let args = &mut [Arg::from(&state)];
            let direction = if round % 2 == 0 { IN } else { INOUT };
            bench
                .run(&[("state", direction)], args, move |ctx, tensors| {
                    let [a, b] = [ctx.read::<i32>(tensors[0], [0])?, ctx.read::<i32>(tensors[0], [1])?];
                    if direction == INOUT {
                        ctx.task(ADD).inout(tensors[0]).scalar((a + b) as u64).submit()?;
                        Ok(())
                    } else {
                        ctx.write(tensors[0], [1], a + b)
                    }
                })
                .unwrap();
        }
        let mut model = [1i32, 1];
        for round in 1..=10 {
            let sum = model[0] + model[1];
            model = if round % 2 == 0 { [model[0], sum] } else { [model[0] + sum, model[1] + sum] };
        }
        assert_eq!(bench.read(&state), model, "{}", bench.uri);
        let copied = bench.counts().1.bytes_in - uploaded;
        assert_eq!(copied, 0, "{}: nothing is uploaded again", bench.uri);
    });
}

// ---- lifetime ----

fn touch(bench: &Bench, resident: &Resident) {
    bench
        .run(&[("subject", INOUT)], &mut [Arg::from(resident)], |ctx, tensors| {
            let value = ctx.read::<i32>(tensors[0], [0])?;
            ctx.write(tensors[0], [0], value)
        })
        .unwrap();
}

#[test]
fn field_a1_a_view_ends_before_its_memory() {
    everywhere(|bench| {
        let resident = bench.upload(&[1, 2, 3]);
        touch(bench, &resident);
        let tensor = resident.tensor();
        let before = bench.spy.calls().len();
        drop(resident);
        let after: Vec<_> = bench.spy.calls()[before..].iter().map(|(op, _)| *op).collect();
        let expected: &[DeviceOp] = match bench.uri {
            "sim" | "sim:a2a3" => &[DeviceOp::Unmap, DeviceOp::Free],
            "sim:windowed" => &[DeviceOp::Unmap, DeviceOp::Free],
            _ => &[DeviceOp::Free],
        };
        assert_eq!(after, expected, "{}", bench.uri);
        bench
            .run(&[], &mut [], move |ctx, _| {
                assert_refused(ctx.read::<i32>(tensor, [0]), 301, &["freed"]);
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn field_a2_a_new_allocation_at_an_old_address_is_another_one() {
    everywhere(|bench| {
        let mut addresses = BTreeSet::new();
        let mut old = Vec::<Tensor>::new();
        for round in 0..50 {
            let len = 10 + round as u64;
            let resident = bench.upload(&vec![round; len as usize]);
            addresses.insert(resident.device_address());
            let dead = old.clone();
            bench
                .run(&[("subject", INOUT)], &mut [Arg::from(&resident)], move |ctx, tensors| {
                    assert_eq!(ctx.read::<i32>(tensors[0], [len - 1])?, round);
                    assert_refused(ctx.read::<i32>(tensors[0], [len]), 102, &[]);
                    for tensor in &dead {
                        assert_refused(ctx.read::<i32>(tensor, [0]), 301, &["freed"]);
                    }
                    ctx.write(tensors[0], [0], -1)
                })
                .unwrap();
            old.push(resident.tensor());
        }
        assert!(addresses.len() < 50, "{}: no address was ever used again, so this shows nothing", bench.uri);
    });
}

#[test]
fn field_a3_only_the_last_owner_frees_and_only_on_its_device() {
    everywhere(|bench| {
        let other = Bench::open(bench.uri);
        let resident = bench.upload(&[1, 2, 3]);
        let interior = resident.slice(0, 1..2).unwrap();
        drop(resident.slice(0, 2..3).unwrap());
        drop(resident);
        assert_eq!(bench.device.counts().frees, 0, "a view keeps its memory");
        assert_refused(other.run(&[("subject", IN)], &mut [Arg::from(&interior)], |_, _| Ok(())), 302, &["`subject`"]);
        assert_eq!(bench.read(&interior), [2]);
        drop(interior);
        assert_eq!((bench.device.counts().frees, other.device.counts().frees), (1, 0));
    });
}

#[test]
fn field_a6_closing_a_device_with_live_views_unmaps_then_frees() {
    everywhere(|bench| {
        let Bench { uri, device, spy } = Bench::open(bench.uri);
        let inner = Bench { uri, device, spy: spy.clone() };
        let resident = inner.upload(&[1, 2, 3]);
        touch(&inner, &resident);
        let mut staged = [0; 8];
        inner
            .run(&[("staged", OUT)], &mut [Arg::write(&[8], &mut staged).unwrap()], |ctx, tensors| {
                let memory = ctx.alloc::<i32>([8])?;
                ctx.task(FILL).output(memory).scalar(1).submit()?;
                ctx.task(COPY).input(memory).output(tensors[0]).submit()?;
                Ok(())
            })
            .unwrap();
        drop(inner);
        // The tensor outlives the device handle, and is still a tensor.
        assert_eq!(resident.shape(), [3]);
        assert_eq!(spy.count(DeviceOp::Alloc), 3);
        drop(resident);
        assert_eq!(spy.count(DeviceOp::Free), 3, "{uri}: tensor, staging buffer, graph memory");
        let maps = spy.count(DeviceOp::Map) - if bench.mirrors() { 1 } else { 0 };
        assert_eq!(spy.count(DeviceOp::Unmap), maps);
    });
}

#[test]
fn field_a7_ten_thousand_cycles_end_where_they_began() {
    everywhere(|bench| {
        let before = bench.counts();
        let touch = callable(&[("subject", INOUT)], |ctx, tensors| ctx.write(tensors[0], [0], 1i32));
        for _ in 0..10_000 {
            let resident = bench.device.alloc_uninit::<i32>([4]).unwrap();
            bench.device.run(&touch, &mut [Arg::from(&resident)]).unwrap();
        }
        let (memory, device) = (bench.counts().0 - before.0, bench.counts().1);
        assert_eq!((memory.allocations, memory.frees), (10_000, 10_000), "{}", bench.uri);
        assert_eq!((memory.established, memory.releases), (10_000, 10_000));
        assert_eq!((memory.maps, memory.quarantined), (memory.unmaps, 0));
        assert_eq!(device.allocs - before.1.allocs, device.frees - before.1.frees);
        assert_eq!(device.maps - before.1.maps, device.unmaps - before.1.unmaps);
        assert_eq!(device.windows_opened - before.1.windows_opened, device.windows_closed - before.1.windows_closed);
    });
}

// ---- graph ----

#[test]
fn field_g1_reading_what_this_graph_writes_is_refused_at_once() {
    everywhere(|bench| {
        let resident = bench.upload(&[1, 2, 3]);
        bench
            .run(&[("subject", INOUT)], &mut [Arg::from(&resident)], |ctx, tensors| {
                ctx.task(ADD).inout(tensors[0]).scalar(1).tag(9).submit()?;
                assert_refused(ctx.read::<i32>(tensors[0], [0]), 201, &["task 0", "`add`", "tag 9", "`subject`"]);
                assert_refused(ctx.write(tensors[0], [0], 1), 201, &["task 0", "`add`", "tag 9", "`subject`"]);
                Ok(())
            })
            .unwrap();
        assert_eq!(bench.read(&resident), [2, 3, 4], "{}", bench.uri);
    });
}

#[test]
fn field_g3_readers_come_before_a_later_writer_and_stay_parallel() {
    everywhere(|bench| {
        for _ in 0..50 {
            let mut sinks = [0; 64];
            let data = bench.upload(&[7; 8]);
            let args = &mut [Arg::from(&data), Arg::write(&[8, 8], &mut sinks).unwrap()];
            let report = bench
                .run(&[("data", INOUT), ("sinks", OUT)], args, |ctx, tensors| {
                    for i in 0..8 {
                        ctx.task(COPY).input(tensors[0]).output(tensors[1].index(0, i)?).submit()?;
                    }
                    ctx.task(FILL).output(tensors[0]).scalar(1).submit()?;
                    Ok(())
                })
                .unwrap();
            assert_eq!(sinks, [7; 64], "{}", bench.uri);
            assert_eq!(report.edges, 8, "an edge from each reader to the writer, none between readers");
            assert_eq!(bench.read(&data), [1; 8]);
        }
    });
}

#[test]
fn field_g4_dependencies_are_of_bytes_not_of_views() {
    everywhere(|bench| {
        let data = bench.upload(&[0; 12]);
        let mut sink = [0; 12];
        let args = &mut [Arg::from(&data), Arg::write(&[12], &mut sink).unwrap()];
        let report = bench
            .run(&[("data", INOUT), ("sink", OUT)], args, |ctx, tensors| {
                let columns = tensors[0].reshape(&[3, 4])?.transpose(0, 1)?;
                ctx.task(FILL).output(columns.slice(0, 0..2)?).scalar(5).submit()?;
                ctx.task(COPY).input(tensors[0]).output(tensors[1]).submit()?;
                // Disjoint columns: no edge.
                ctx.task(READ).input(columns.slice(0, 2..4)?).submit()?;
                Ok(())
            })
            .unwrap();
        assert_eq!(sink, [5, 5, 0, 0, 5, 5, 0, 0, 5, 5, 0, 0], "{}", bench.uri);
        assert_eq!(report.edges, 1);
    });
}

#[test]
fn field_g10_a_refused_access_touches_nothing_and_the_first_cause_stays() {
    everywhere(|bench| {
        let resident = bench.upload(&[1, 2, 3]);
        let inner = bench.clone();
        let result = bench.run(&[("subject", INOUT)], &mut [Arg::from(&resident)], move |ctx, tensors| {
            ctx.latch_errors();
            ctx.task(ADD).inout(tensors[0]).scalar(1).submit()?;
            let before = inner.counts();
            let mut to = [9; 3];
            let first = ctx.read_into(tensors[0], &mut to).unwrap_err();
            assert_eq!(to, [9; 3]);
            for _ in 0..3 {
                let later = ctx.read::<i32>(tensors[0], [1000]).unwrap_err();
                assert_eq!(later, first);
            }
            assert_eq!(inner.counts(), before);
            Ok(())
        });
        assert_refused(result, 201, &["task 0", "`subject`"]);
        assert!(resident.view_report().is_none(), "{}: nothing was mapped", bench.uri);
        assert_eq!(bench.read(&resident), [1, 2, 3], "{}: nothing ran", bench.uri);
    });
}

// ---- views and strides ----

#[test]
fn field_s1_the_bounds_are_those_of_the_view() {
    everywhere(|bench| {
        let parent = bench.upload(&(0..12).collect::<Vec<_>>());
        let tile = parent.reshape(&[3, 4]).unwrap().slice(1, 1..3).unwrap();
        bench
            .run(&[("tile", INOUT)], &mut [Arg::from(&tile)], |ctx, tensors| {
                assert_eq!(ctx.read::<i32>(tensors[0], [2, 1])?, 10);
                assert_refused(ctx.read::<i32>(tensors[0], [0, 2]), 102, &["[0, 2]", "[3, 2]", "`tile`"]);
                assert_refused(ctx.write(tensors[0], [3, 0], 1), 102, &["[3, 0]", "[3, 2]", "`tile`"]);
                assert!(ctx.view::<i32>(tensors[0])?.get(&[0, 2]).is_err());
                assert!(ctx.view_mut::<i32>(tensors[0])?.set(&[0, 2], 1).is_err());
                Ok(())
            })
            .unwrap();
        assert_eq!(bench.read(&parent), (0..12).collect::<Vec<_>>(), "{}", bench.uri);
    });
}

#[test]
fn field_s3_an_empty_view_is_accepted_and_costs_nothing() {
    everywhere(|bench| {
        let parent = bench.upload(&(0..12).collect::<Vec<_>>());
        let inner = bench.clone();
        let report = bench
            .run(&[("parent", INOUT)], &mut [Arg::from(&parent)], move |ctx, tensors| {
                let empties = [
                    tensors[0].slice(0, 50..50)?,
                    tensors[0].slice(0, 12..12)?,
                    tensors[0].reshape(&[3, 4])?.slice(1, 3..3)?,
                    tensors[0].reshape(&[3, 4])?.slice(0, 2..2)?.slice(1, 2..4)?,
                ];
                let before = inner.counts();
                for empty in empties {
                    let origin = vec![0; empty.rank()];
                    assert_refused(ctx.read::<i32>(empty, &origin), 102, &["`parent`"]);
                    assert_refused(ctx.write(empty, &origin, 1), 102, &["`parent`"]);
                    ctx.read_into::<i32>(empty, &mut [])?;
                    ctx.write_from::<i32>(empty, &[])?;
                    assert_eq!(ctx.view::<i32>(empty)?.to_vec(), []);
                    assert_eq!(ctx.view::<i32>(empty)?.as_slice(), Some(&[][..]));
                    ctx.view_mut::<i32>(empty)?.fill(9);
                    ctx.task(ADD).inout(empty).scalar(1).submit()?;
                    ctx.task(READ).input(empty).submit()?;
                }
                assert_eq!(inner.counts(), before, "{}", inner.uri);
                Ok(())
            })
            .unwrap();
        assert_eq!(report.edges, 0);
        assert!(parent.view_report().is_none(), "{}: nothing was mapped", bench.uri);
        let empty = parent.slice(0, 3..3).unwrap();
        assert_eq!(bench.read(&empty), [0i32; 0]);
        bench.device.write::<i32>(&empty, &[]).unwrap();
        // Empty arguments, staged and resident.
        let args = &mut [Arg::from(&empty), Arg::write::<i32>(&[0], &mut []).unwrap()];
        bench
            .run(&[("empty", INOUT), ("staged", INOUT)], args, |ctx, tensors| {
                ctx.task(COPY).input(tensors[0]).output(tensors[1]).submit()?;
                assert_eq!(ctx.view::<i32>(tensors[1])?.to_vec(), []);
                let memory = ctx.alloc::<i32>([0, 3])?;
                ctx.task(ADD).inout(memory).scalar(1).submit()?;
                assert_eq!(ctx.view::<i32>(memory)?.to_vec(), []);
                Ok(())
            })
            .unwrap();
        assert_eq!(bench.read(&parent), (0..12).collect::<Vec<_>>());
    });
}

#[test]
fn field_s4_the_last_element_of_a_strided_view_is_reached() {
    everywhere(|bench| {
        for residency in ["resident", "staged"] {
            let mut host: Vec<i32> = (0..9).collect();
            let resident = bench.upload(&host);
            let arg = if residency == "staged" { Arg::write(&[9], &mut host).unwrap() } else { Arg::from(&resident) };
            bench
                .run(&[("subject", INOUT)], &mut [arg], |ctx, tensors| {
                    let strided = tensors[0].step_by(0, 4)?;
                    assert_eq!(ctx.read::<i32>(strided, [2])?, 8);
                    assert_eq!(ctx.view::<i32>(strided)?.to_vec(), [0, 4, 8]);
                    ctx.write(strided, [2], 80)?;
                    let mut out = [0; 3];
                    ctx.read_into(strided, &mut out)?;
                    assert_eq!(out, [0, 4, 80]);
                    ctx.task(ADD).inout(strided.slice(0, 1..3)?).scalar(100).submit()?;
                    Ok(())
                })
                .unwrap();
            let values = if residency == "staged" { host } else { bench.read(&resident) };
            assert_eq!(values, [0, 1, 2, 3, 104, 5, 6, 7, 180], "{} {residency}", bench.uri);
        }
    });
}

#[test]
fn field_s5_s6_s7_bulk_writes_change_exactly_the_view() {
    everywhere(|bench| {
        for residency in ["resident", "staged"] {
            let mut host: Vec<i32> = (0..20).collect();
            let resident = bench.upload(&host);
            let arg = if residency == "staged" { Arg::write(&[20], &mut host).unwrap() } else { Arg::from(&resident) };
            bench
                .run(&[("subject", INOUT)], &mut [arg], |ctx, tensors| {
                    let matrix = tensors[0].reshape(&[4, 5])?;
                    let tile = matrix.slice(0, 1..3)?.slice(1, 2..4)?;
                    ctx.write_from(tile, &[-1, -2, -3, -4])?;
                    let mut packed = [0; 4];
                    ctx.read_into(tile.transpose(0, 1)?, &mut packed)?;
                    assert_eq!(packed, [-1, -3, -2, -4]);
                    // Contiguous, with a start.
                    let row = matrix.index(0, 3)?;
                    ctx.write_from(row.slice(0, 1..4)?, &[-5, -6, -7])?;
                    let mut packed = [0; 5];
                    ctx.read_into(row, &mut packed)?;
                    assert_eq!(packed, [15, -5, -6, -7, 19]);
                    Ok(())
                })
                .unwrap();
            let values = if residency == "staged" { host } else { bench.read(&resident) };
            let expected = [0, 1, 2, 3, 4, 5, 6, -1, -2, 9, 10, 11, -3, -4, 14, 15, -5, -6, -7, 19];
            assert_eq!(values, expected, "{} {residency}", bench.uri);
        }
    });
}

fn exact_width<T: PodElement>(bench: &Bench, pattern: u64) {
    let what = format!("{} {}", bench.uri, T::DTYPE);
    let value = T::from_bits64(pattern);
    let zeros = HostTensor::zeros(T::DTYPE, &[5]).unwrap();
    let resident = bench.device.upload_tensor(&zeros).unwrap();
    bench
        .run(&[("subject", INOUT)], &mut [Arg::from(&resident)], move |ctx, tensors| {
            ctx.write(tensors[0], [2], value)?;
            assert_eq!(ctx.read_bits(tensors[0], [2])?, value.to_bits64());
            assert_eq!(ctx.read_bits(tensors[0], [1])?, 0);
            assert_eq!(ctx.read_bits(tensors[0], [3])?, 0);
            ctx.write_bits(tensors[0], [4], pattern)?;
            assert_eq!(ctx.view::<T>(tensors[0])?.to_vec()[4].to_bits64(), value.to_bits64());
            if T::DTYPE.size_bytes() != 8 {
                assert_refused(ctx.read::<u64>(tensors[0], [0]), 104, &["u64"]);
            }
            Ok(())
        })
        .unwrap();
    let bytes = bench.device.read_tensor(&resident).unwrap();
    let size = T::DTYPE.size_bytes() as usize;
    for (i, element) in bytes.bytes().chunks(size).enumerate() {
        let expected = if [2, 4].contains(&i) { value.to_bits64() } else { 0 };
        assert_eq!(element, &expected.to_le_bytes()[..size], "{what}");
    }
}

#[test]
fn field_s8_each_dtype_has_its_exact_width() {
    everywhere(|bench| {
        const PATTERN: u64 = 0x3f8a_4c1e_3c2d_5a69;
        exact_width::<u8>(bench, PATTERN);
        exact_width::<i8>(bench, PATTERN);
        exact_width::<u16>(bench, PATTERN);
        exact_width::<i16>(bench, PATTERN);
        exact_width::<half::f16>(bench, PATTERN);
        exact_width::<half::bf16>(bench, PATTERN);
        exact_width::<u32>(bench, PATTERN);
        exact_width::<i32>(bench, PATTERN);
        exact_width::<f32>(bench, PATTERN);
        exact_width::<u64>(bench, PATTERN);
        exact_width::<i64>(bench, PATTERN);
        exact_width::<f64>(bench, PATTERN);
        let flags = bench.device.alloc_zeroed::<bool>([3]).unwrap();
        bench
            .run(&[("flags", INOUT)], &mut [Arg::from(&flags)], |ctx, tensors| {
                ctx.write(tensors[0], [1], true)?;
                assert_eq!(ctx.view::<bool>(tensors[0])?.to_vec(), [false, true, false]);
                ctx.view_mut::<bool>(tensors[0])?.set(&[2], true).unwrap();
                assert_refused(ctx.read::<u8>(tensors[0], [1]), 104, &["bool"]);
                Ok(())
            })
            .unwrap();
        assert_eq!(bench.device.read_tensor(&flags).unwrap().bytes(), [0, 1, 1], "{}", bench.uri);
    });
}

#[test]
fn field_s10_a_broadcast_view_costs_its_extent() {
    everywhere(|bench| {
        const MANY: u64 = 1 << 45;
        let one = bench.upload(&[42, 43]);
        let wide = one.slice(0, 1..2).unwrap().broadcast(&[MANY]).unwrap();
        assert_refused(bench.device.read::<i32>(&wide), 501, &["cannot reserve"]);
        assert_refused(bench.device.read_tensor(&wide), 501, &["cannot reserve"]);
        assert_refused(bench.device.write::<i32>(&wide, &[1]), 103, &[]);
        for staged in [true, false] {
            let host = [42, 43];
            let arg = if staged { Arg::read(&[2], &host).unwrap() } else { Arg::from(&one) };
            bench
                .run(&[("subject", IN)], &mut [arg], |ctx, tensors| {
                    let wide = tensors[0].slice(0, 1..2)?.broadcast(&[MANY])?;
                    assert_eq!(ctx.read::<i32>(wide, [MANY - 1])?, 43);
                    let view = ctx.view::<i32>(wide)?;
                    assert_eq!(view.num_elems(), MANY);
                    assert_eq!(view.get(&[MANY / 2]).unwrap(), 43);
                    assert_refused(ctx.view_mut::<i32>(wide), 107, &["`subject`"]);
                    assert_refused(ctx.task(FILL).output(wide).scalar(1).submit(), 412, &["fall on each other"]);
                    ctx.write(wide, [0], 44)?; // one element has one value
                    assert_eq!(ctx.view::<i32>(wide)?.get(&[MANY - 1]).unwrap(), 44);
                    let mut three = [0; 3];
                    ctx.read_into(wide.slice(0, 7..10)?, &mut three)?;
                    assert_eq!(three, [44; 3]);
                    let memory = ctx.alloc::<i32>([1])?;
                    ctx.write(memory, [0], 5)?;
                    assert_eq!(ctx.view::<i32>(memory.broadcast(&[MANY])?)?.get(&[9]).unwrap(), 5);
                    ctx.task(READ).input(wide).submit()?;
                    Ok(())
                })
                .unwrap();
        }
        assert_eq!(bench.read(&one), [42, 44], "{}", bench.uri);
        assert_eq!(bench.device.read::<i32>(&one.slice(0, 1..2).unwrap().broadcast(&[3]).unwrap()).unwrap(), [44; 3]);
    });
}

#[test]
fn field_s11_elements_beyond_four_gibibytes() {
    everywhere(|bench| {
        let far = (5 * GIB + 4) / 4;
        let resident = bench.device.alloc_uninit::<i32>([6 * GIB / 4]).unwrap();
        let spots = [far, far - GIB, 1, 6 * GIB / 4 - 1]; // the second is 4 GiB before the first
        for (round, value) in [(0, 7), (1, 8)] {
            let report = bench
                .run(&[("subject", INOUT)], &mut [Arg::from(&resident)], move |ctx, tensors| {
                    for (i, spot) in spots.into_iter().enumerate() {
                        if round > 0 {
                            assert_eq!(ctx.read::<i32>(tensors[0], [spot])?, 107 + i as i32);
                        } else {
                            assert_refused(ctx.read::<i32>(tensors[0], [spot]), 204, &[]);
                        }
                        ctx.write(tensors[0], [spot], value + i as i32)?;
                        assert_eq!(ctx.read::<i32>(tensors[0], [spot])?, value + i as i32);
                        ctx.task(ADD).inout(tensors[0].slice(0, spot..spot + 1)?).scalar(100).submit()?;
                    }
                    Ok(())
                })
                .unwrap();
            let moved = report.bytes.h2d + report.bytes.d2h;
            assert_eq!(moved, if bench.uri == "sim:a5" { 16 + 16 * round } else { 0 }, "{}", bench.uri);
            for (i, spot) in spots.into_iter().enumerate() {
                let element = resident.slice(0, spot..spot + 1).unwrap();
                assert_eq!(bench.read(&element), [100 + value + i as i32], "{} {spot}", bench.uri);
            }
        }
    });
}

#[test]
fn field_s12_as_many_indices_as_dimensions() {
    everywhere(|bench| {
        let resident = bench.upload(&(0..12).collect::<Vec<_>>());
        bench
            .run(&[("subject", INOUT)], &mut [Arg::from(&resident)], |ctx, tensors| {
                let matrix = tensors[0].reshape(&[3, 4])?;
                for index in [&[][..], &[1], &[1, 1, 0], &[0; 9]] {
                    assert_refused(ctx.read::<i32>(matrix, index), 102, &["2 dimensions", "`subject`"]);
                    assert_refused(ctx.write(matrix, index, 1), 102, &["2 dimensions", "`subject`"]);
                    assert!(ctx.view::<i32>(matrix)?.get(index).is_err());
                }
                let scalar = matrix.index(0, 1)?.index(0, 2)?;
                assert_eq!(ctx.read::<i32>(scalar, [])?, 6);
                assert_refused(ctx.read::<i32>(scalar, [0]), 102, &["0 dimensions"]);
                Ok(())
            })
            .unwrap();
    });
}

// ---- capacity ----

#[test]
fn field_k1_a_graph_of_65_792_tasks() {
    everywhere(|bench| {
        let resident = bench.upload(&[0; 257]);
        let report = bench
            .run(&[("subject", INOUT)], &mut [Arg::from(&resident)], |ctx, tensors| {
                for _ in 0..256 {
                    for i in 0..257 {
                        ctx.task(ADD).inout(tensors[0].slice(0, i..i + 1)?).scalar(1).submit()?;
                    }
                }
                Ok(())
            })
            .unwrap();
        assert_eq!((report.tasks, report.edges), (65_792, 255 * 257), "{}", bench.uri);
        assert_eq!(bench.read(&resident), [256; 257], "{}", bench.uri);
    });
}

#[test]
fn field_k6_reads_of_an_unchanged_tensor_are_served_from_few_copies() {
    everywhere(|bench| {
        let resident = bench.upload(&(0..16_384).collect::<Vec<_>>());
        let mut copies = bench.counts().1.copies_out + bench.counts().1.range_copies_out;
        for run in 0..3 {
            bench
                .run(&[("subject", INOUT)], &mut [Arg::from(&resident)], move |ctx, tensors| {
                    for i in 0..16_384 {
                        assert_eq!(ctx.read::<i32>(tensors[0], [i])?, i as i32 + if i == 99 { run } else { 0 });
                    }
                    // A task's write makes its bytes stale, and only these.
                    ctx.task(ADD).inout(tensors[0].slice(0, 99..100)?).scalar(1).submit()?;
                    Ok(())
                })
                .unwrap();
            let now = bench.counts().1.copies_out + bench.counts().1.range_copies_out;
            assert_eq!(now - copies, u64::from(bench.mirrors()), "{}", bench.uri);
            copies = now;
        }
        let filled = bench.device.counts().filled_bytes;
        assert_eq!(filled, if bench.mirrors() { 65_536 + 2 * 4 } else { 0 }, "{}", bench.uri);
    });
}

// ---- diagnostics ----

#[test]
fn field_d1_each_cause_has_its_code() {
    everywhere(|bench| {
        let subject = bench.upload(&[1, 2, 3]);
        let uninit = bench.device.alloc_uninit::<i32>([3]).unwrap();
        let other = Bench::open(bench.uri);
        let foreign = other.upload(&[1]).tensor();
        let freed = bench.upload(&[1]).tensor();
        let args = &mut [Arg::from(&subject), Arg::from(&uninit)];
        bench
            .run(&[("subject", INOUT), ("uninit", IN)], args, move |ctx, tensors| {
                let mut codes = BTreeSet::new();
                let mut add = |result: Result<i32, Error>| assert!(codes.insert(result.unwrap_err().code()));
                add(ctx.read(freed, [0]));
                add(ctx.read(foreign, [0]));
                add(ctx.read(tensors[0], [3]));
                add(ctx.read(tensors[1], [0]));
                ctx.task(READ).input(tensors[0]).submit()?;
                add(ctx.write(tensors[0], [0], 1).map(|()| 0));
                ctx.task(ADD).inout(tensors[0]).scalar(1).submit()?;
                add(ctx.read(tensors[0], [0]));
                add(ctx.read::<f32>(tensors[0], [0]).map(|_| 0));
                let memory = ctx.scope(|ctx| ctx.alloc::<i32>([1]))?;
                add(ctx.read(memory, [0]));
                Ok(())
            })
            .unwrap();
        // A transfer that failed is another cause still.
        bench.spy.fail(DeviceOp::CopyOut, 1);
        assert_refused(bench.device.read::<i32>(&subject), 503, &["copy to host", "injected"]);
        assert_eq!(bench.read(&subject), [2, 3, 4]);
    });
}

#[test]
fn field_d2_messages_say_what_where_and_what_to_do() {
    everywhere(|bench| {
        let lens = bench.device.alloc_uninit::<i32>([4, 2]).unwrap();
        bench
            .run(&[("context_lens", INOUT)], &mut [Arg::from(&lens)], |ctx, tensors| {
                let words = ["`context_lens`", "element [2, 1]", "bytes 20..24", "upload"];
                assert_refused(ctx.read::<i32>(tensors[0], [2, 1]), 204, &words);
                let words = ["`context_lens`", "shape [2, 2]", "bytes 16..32"];
                assert_refused(ctx.view::<i32>(tensors[0].slice(0, 2..4)?), 204, &words);
                ctx.task(FILL).output(tensors[0].index(0, 1)?).scalar(1).tag(5).submit()?;
                let words = ["`context_lens`", "element [1, 0]", "task 0 (`fill`, tag 5)", "next run"];
                assert_refused(ctx.read::<i32>(tensors[0], [1, 0]), 201, &words);
                Ok(())
            })
            .unwrap();
    });
}

// ---- interface ----

#[test]
fn field_p3_guards_are_independent() {
    everywhere(|bench| {
        let resident = bench.upload(&(0..8).collect::<Vec<_>>());
        let args = &mut [Arg::from(&resident), Arg::read(&[2], &[5, 6]).unwrap()];
        bench
            .run(&[("subject", INOUT), ("staged", IN)], args, |ctx, tensors| {
                let first = ctx.view::<i32>(tensors[0])?;
                let second = ctx.view::<i32>(tensors[0].slice(0, 2..4)?)?;
                let third = ctx.view::<i32>(tensors[1])?;
                drop(first);
                assert_eq!(second.to_vec(), [2, 3]);
                assert_eq!(ctx.read::<i32>(tensors[0], [7])?, 7);
                drop(second);
                assert_eq!(third.as_slice(), Some(&[5, 6][..]));
                ctx.write(tensors[1], [0], 9)?;
                let (all, part) = (ctx.view::<i32>(tensors[1])?, ctx.view::<i32>(tensors[1].slice(0, 1..2)?)?);
                assert_eq!((all.to_vec(), part.to_vec()), (vec![9, 6], vec![6]));
                Ok(())
            })
            .unwrap();
    });
}

#[test]
fn field_p5_nothing_is_a_success_and_no_allocation_is_empty() {
    everywhere(|bench| {
        let resident = bench.upload(&[1, 2, 3]);
        let before = bench.counts();
        assert_refused(bench.device.alloc_uninit::<i32>([0]), 109, &["0 bytes"]);
        assert_refused(bench.device.alloc_zeroed::<i32>([3, 0]), 109, &["0 bytes"]);
        let empty = resident.slice(0, 1..1).unwrap();
        bench.device.write::<i32>(&empty, &[]).unwrap();
        assert_eq!(bench.device.read::<i32>(&empty).unwrap(), []);
        assert_eq!(bench.counts(), before, "{}", bench.uri);
    });
}

#[test]
fn field_p7_a_staged_control_tensor_is_read_where_it_is() {
    everywhere(|bench| {
        let control: Vec<i32> = (0..1000).collect();
        let inner = bench.clone();
        let copies_out = bench.counts().1.copies_out;
        let args = &mut [Arg::read(&[1000], &control).unwrap()];
        bench
            .run(&[("control", IN)], args, move |ctx, tensors| {
                let before = inner.counts();
                for i in 0..1000 {
                    assert_eq!(ctx.read::<i32>(tensors[0], [i])?, i as i32);
                }
                assert_eq!(ctx.view::<i32>(tensors[0])?.as_slice().map(<[i32]>::len), Some(1000));
                assert_eq!(inner.counts(), before, "{}", inner.uri);
                Ok(())
            })
            .unwrap();
        assert_eq!(bench.counts().1.copies_out, copies_out, "{}", bench.uri);
    });
}

/// A view of a view: what to do, and to which dimension.
#[derive(Clone, Debug)]
enum Narrow {
    Slice(prop::sample::Index, prop::sample::Index, prop::sample::Index),
    Step(prop::sample::Index, u64),
    Index(prop::sample::Index, prop::sample::Index),
    Transpose(prop::sample::Index, prop::sample::Index),
}

fn narrow() -> impl Strategy<Value = Narrow> {
    use prop::sample::Index;
    prop_oneof![
        any::<(Index, Index, Index)>().prop_map(|(dim, from, to)| Narrow::Slice(dim, from, to)),
        (any::<Index>(), 1u64..4).prop_map(|(dim, step)| Narrow::Step(dim, step)),
        any::<(Index, Index)>().prop_map(|(dim, at)| Narrow::Index(dim, at)),
        any::<(Index, Index)>().prop_map(|(a, b)| Narrow::Transpose(a, b)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn field_p8_views_of_views_equal_a_model(chain in prop::collection::vec(narrow(), 0..6)) {
        // The model: for each element of the view, which element of the parent it is.
        let shape = [4u64, 5, 3];
        let mut dims: Vec<u64> = shape.to_vec();
        let mut model: Vec<usize> = (0..60).collect();
        let mut parent = Vec::new();
        let mut steps = Vec::new();
        for narrow in chain {
            if dims.is_empty() || model.is_empty() {
                break;
            }
            let pick = |index: &prop::sample::Index, len: u64| index.index(len as usize);
            let gather = |dims: &[u64], to: &[u64], model: &[usize], from: &dyn Fn(&[u64]) -> Vec<u64>| {
                let mut gathered = Vec::new();
                for_each_index(to, |index| {
                    let place = from(index).iter().zip(dims).fold(0, |at, (i, len)| at * len + i);
                    gathered.push(model[place as usize]);
                });
                gathered
            };
            let mut to = dims.clone();
            match narrow {
                Narrow::Slice(dim, a, b) => {
                    let dim = pick(&dim, dims.len() as u64);
                    let (a, b) = (pick(&a, dims[dim] + 1) as u64, pick(&b, dims[dim] + 1) as u64);
                    let (from, end) = (a.min(b), a.max(b));
                    to[dim] = end - from;
                    model = gather(&dims, &to, &model, &|i| { let mut i = i.to_vec(); i[dim] += from; i });
                    steps.push((0, dim, from, end));
                }
                Narrow::Step(dim, step) => {
                    let dim = pick(&dim, dims.len() as u64);
                    to[dim] = dims[dim].div_ceil(step);
                    model = gather(&dims, &to, &model, &|i| { let mut i = i.to_vec(); i[dim] *= step; i });
                    steps.push((1, dim, step, 0));
                }
                Narrow::Index(dim, at) => {
                    let dim = pick(&dim, dims.len() as u64);
                    let at = pick(&at, dims[dim]) as u64;
                    to.remove(dim);
                    model = gather(&dims, &to, &model, &|i| { let mut i = i.to_vec(); i.insert(dim, at); i });
                    steps.push((2, dim, at, 0));
                }
                Narrow::Transpose(a, b) => {
                    let (a, b) = (pick(&a, dims.len() as u64), pick(&b, dims.len() as u64));
                    to.swap(a, b);
                    model = gather(&dims, &to, &model, &|i| { let mut i = i.to_vec(); i.swap(a, b); i });
                    steps.push((3, a, b as u64, 0));
                }
            }
            dims = to;
        }
        parent.extend(0..60i32);
        let apply = move |tensor: &Tensor| -> Result<Tensor, Error> {
            steps.iter().try_fold(*tensor, |tensor, &(kind, dim, a, b)| match kind {
                0 => tensor.slice(dim, a..b),
                1 => tensor.step_by(dim, a),
                2 => tensor.index(dim, a),
                _ => tensor.transpose(dim, a as usize),
            })
        };
        everywhere(|bench| {
            for staged in [false, true] {
                let resident = bench.device.upload(shape, &parent).unwrap();
                let mut host = parent.clone();
                let arg = if staged { Arg::write(&shape, &mut host).unwrap() } else { Arg::from(&resident) };
                let (apply, model, dims) = (apply.clone(), model.clone(), dims.clone());
                let expected: Vec<i32> = model.iter().map(|&at| at as i32).collect();
                let written: Vec<i32> = (0..model.len() as i32).map(|i| -1 - i).collect();
                let mut after = parent.clone();
                for (&at, &value) in model.iter().zip(&written) {
                    after[at] = value;
                }
                bench.run(&[("parent", INOUT)], &mut [arg], move |ctx, tensors| {
                    let view = apply(&tensors[0])?;
                    assert_eq!(view.shape(), dims);
                    assert_eq!(ctx.view::<i32>(view)?.to_vec(), expected);
                    let mut packed = vec![0; expected.len()];
                    ctx.read_into(view, &mut packed)?;
                    assert_eq!(packed, expected);
                    let mut elements = Vec::new();
                    for_each_index(&dims, |index| elements.push(ctx.read::<i32>(view, index).unwrap()));
                    assert_eq!(elements, expected);
                    ctx.write_from(view, &written)?;
                    assert_eq!(ctx.view::<i32>(view)?.to_vec(), written);
                    Ok(())
                }).unwrap();
                let values = if staged { host } else { bench.device.read::<i32>(&resident).unwrap() };
                assert_eq!(values, after, "{} staged: {staged}", bench.uri);
            }
        });
    }
}

#[test]
fn field_c13_a_mapping_that_loses_what_the_host_stores_is_not_used() {
    for uri in PROFILES {
        let spy = Faulty::open(uri);
        // What this device grants is memory that it never looks at.
        spy.lie();
        let device =
            periscope::Device::from_hal(Arc::clone(&spy) as Arc<dyn periscope_hal::Device>, Default::default());
        let tensor = device.upload([4], &[1i32, 2, 3, 4]).unwrap();
        let maps = spy.count(DeviceOp::Map);
        let add = periscope::Kernel::host("add", periscope::CoreKind::Vector, |args| {
            let mut data = args.output::<i32>(0)?;
            for index in 0..4 {
                let value = data.get(&[index])?;
                data.set(&[index], value + 10)?;
            }
            Ok(())
        })
        .inout::<i32>();
        let id = periscope::KernelId(0);
        let callable =
            periscope::Callable::builder("add").inout("tensor").kernel(id, add).orchestrate(move |ctx, args| {
                assert_eq!(ctx.read::<i32>(args[0], [1])? % 10, 2);
                ctx.write(args[0], [0], 5i32)?;
                ctx.task(id).inout(args[0]).submit().map(|_| ())
            });
        for _ in 0..2 {
            device.run(&callable, &mut [(&tensor).into()]).unwrap();
        }
        assert_eq!(device.read::<i32>(&tensor).unwrap(), [15, 22, 23, 24], "{uri}");
        let view = tensor.view_report().unwrap();
        assert_eq!(view.mechanism, Mechanism::Mirrored, "{uri}");
        assert!(view.reason.contains("start-up probe"), "{uri}: {}", view.reason);
        assert_eq!(spy.count(DeviceOp::Map), maps, "{uri}: no map is asked for any more");
    }
}
