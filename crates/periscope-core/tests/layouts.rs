//! Layouts and footprints against the oracle that enumerates elements and bytes.

mod oracle;

use oracle::{Written, indices};
use periscope_core::footprint::{ORDER_STEPS, REFUSAL_STEPS, overlaps};
use periscope_core::{DType, Footprint, Layout, LayoutError, Region};
use proptest::prelude::*;

fn assert_same(region: &Region, written: &Written) {
    assert_eq!(region.layout.shape(), written.shape.as_slice());
    let size = region.dtype.size_bytes();
    for index in indices(&written.shape) {
        assert_eq!(region.byte_of(&index).expect("inside"), written.at(&index) * size, "{index:?} of {region:?}");
    }
    assert_eq!(region.layout.num_elems(), written.elems.len() as u64);
    let bytes = written.bytes(region.dtype);
    let (footprint, at) = Footprint::of_region(region);
    let mut runs = std::collections::BTreeSet::new();
    footprint.for_each_run(at, |start, len| runs.extend(start..start + len));
    assert_eq!(runs, bytes, "{region:?} as {footprint:?}");
    let extent = bytes.last().map_or(0, |last| last + 1 - bytes.first().expect("not empty"));
    assert_eq!(footprint.extent_bytes(), extent);
    if let Some(first) = bytes.first() {
        assert_eq!(at, *first);
    }
}

/// Applies up to five view operations, chosen by numbers, to a region and to its oracle.
fn random_view(dtype: DType, shape: &[u64], ops: &[[u8; 4]]) -> (Region, Written) {
    let mut region = Region::contiguous(dtype, shape).expect("small");
    let mut written = Written::contiguous(shape);
    for &[op, a, b, c] in ops {
        let rank = written.shape.len();
        let dim = if rank == 0 { 0 } else { a as usize % rank };
        match op % 7 {
            0 if rank > 0 => {
                let len = written.shape[dim];
                let start = u64::from(b) % (len + 1);
                let end = start + u64::from(c) % (len - start + 1);
                region = region.slice(dim, start..end).expect("inside");
                written = written.slice(dim, start, end);
            }
            1 if rank > 0 => {
                let step = u64::from(b) % 4 + 1;
                region = region.step_by(dim, step).expect("a step");
                written = written.step_by(dim, step);
            }
            2 if rank > 0 && written.shape[dim] > 0 => {
                let at = u64::from(b) % written.shape[dim];
                region = region.index(dim, at).expect("inside");
                written = written.index(dim, at);
            }
            3 if rank > 1 => {
                let other = b as usize % rank;
                let mut order: Vec<usize> = (0..rank).collect();
                order.swap(dim, other);
                region = region.transpose(dim, other).expect("dims");
                written = written.permute(&order);
            }
            4 if rank > 0 => {
                let mut order: Vec<usize> = (0..rank).collect();
                order.rotate_left(b as usize % rank);
                region = region.permute(&order).expect("a permutation");
                written = written.permute(&order);
            }
            5 if rank < 4 => {
                let mut target = written.shape.clone();
                target.iter_mut().filter(|len| **len == 1).for_each(|len| *len = u64::from(b) % 3 + 1);
                target.insert(0, u64::from(c) % 3);
                region = region.broadcast(&target).expect("from 1");
                written = written.broadcast(&target);
            }
            6 => {
                let elems = written.elems.len() as u64;
                let split = u64::from(b) % 5 + 1;
                let target = if elems.is_multiple_of(split) { vec![split, elems / split] } else { vec![elems] };
                match region.reshape(&target) {
                    Ok(reshaped) => {
                        region = reshaped;
                        written = written.reshape(&target);
                    }
                    Err(LayoutError::ReshapeNeedsCopy { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            _ => {}
        }
    }
    (region, written)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn views_name_the_elements_that_enumeration_names(
        dtype in 0u8..16,
        shape in prop::collection::vec(0u64..6, 0..4),
        ops in prop::collection::vec(any::<[u8; 4]>(), 0..6),
    ) {
        let (region, written) = random_view(DType::from_code(dtype).expect("a code"), &shape, &ops);
        assert_same(&region, &written);
    }

    #[test]
    fn a_view_that_would_reorder_needs_a_copy(
        shape in prop::collection::vec(1u64..5, 2..4),
        order in 0usize..3,
        split in 1u64..5,
    ) {
        let rank = shape.len();
        let mut axes: Vec<usize> = (0..rank).collect();
        axes.rotate_left(order % rank);
        let region = Region::contiguous(DType::F32, &shape).expect("small").permute(&axes).expect("a permutation");
        let written = Written::contiguous(&shape).permute(&axes);
        let elems = written.elems.len() as u64;
        let split = if elems.is_multiple_of(split) { split } else { 1 };
        let target = [split, elems / split];
        // A strided view of the target shape exists exactly if the offsets are an affine function of the index.
        let reshaped = written.reshape(&target);
        let step = |dim: usize| {
            let mut index = vec![0; 2];
            index[dim] = 1;
            if target[dim] > 1 { Some(reshaped.at(&index)) } else { Some(0) }
        };
        let strides = [step(0).expect("some"), step(1).expect("some")];
        let affine = indices(&target).iter().all(|index| reshaped.at(index) == index[0] * strides[0] + index[1] * strides[1]);
        match region.reshape(&target) {
            Ok(view) => {
                prop_assert!(affine);
                assert_same(&view, &reshaped);
            }
            Err(LayoutError::ReshapeNeedsCopy { .. }) => prop_assert!(!affine, "{region:?} to {target:?} is a view"),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn overlap_and_covering_are_those_of_the_byte_sets(
        a in strided(),
        b in strided(),
        shared in any::<bool>(),
    ) {
        let (dtype_a, shape_a, strides_a, at_a) = a;
        let (dtype_b, shape_b, mut strides_b, at_b) = b;
        if shared {
            // Views of one array: equal strides.
            strides_b = strides_a.clone();
        }
        let rank = shape_a.len().min(shape_b.len()).min(strides_b.len());
        let part = |dtype, shape: &[u64], strides: &[u64], at| {
            let (shape, strides) = (&shape[..rank], &strides[..rank]);
            let region = Region { dtype, layout: Layout::strided(shape, strides).expect("small"), offset_elems: at };
            (Footprint::of_region(&region), Written::strided(shape, strides, at).bytes(dtype))
        };
        let ((a, a_at), a_bytes) = part(dtype_a, &shape_a, &strides_a, at_a);
        let ((b, b_at), b_bytes) = part(dtype_b, &shape_b, &strides_b, at_b);
        prop_assert_eq!(overlaps(&a, a_at, &b, b_at, REFUSAL_STEPS), !a_bytes.is_disjoint(&b_bytes));
        prop_assert_eq!(overlaps(&b, b_at, &a, a_at, ORDER_STEPS), !a_bytes.is_disjoint(&b_bytes));
        if a.covers(a_at, &b, b_at) {
            prop_assert!(b_bytes.is_subset(&a_bytes));
        }
    }

    #[test]
    fn covering_recognises_tiles_of_a_window(
        (rows, columns) in (1u64..9, 1u64..9),
        window in prop::array::uniform4(0u64..9),
        tile in prop::array::uniform4(0u64..9),
    ) {
        let array = Region::contiguous(DType::U16, &[9, 9]).expect("small");
        let cut = |[row, column, height, width]: [u64; 4], most: (u64, u64)| {
            let (row, column) = (row % most.0, column % most.1);
            let region = array.slice(0, row..row + height % (most.0 - row) + 1).expect("inside");
            region.slice(1, column..column + width % (most.1 - column) + 1).expect("inside")
        };
        let (window, tile) = (cut(window, (rows, columns)), cut(tile, (9, 9)));
        let bytes = |region: &Region| Written::strided(region.layout.shape(), region.layout.strides(), region.offset_elems).bytes(DType::U16);
        let ((a, a_at), (b, b_at)) = (Footprint::of_region(&window), Footprint::of_region(&tile));
        prop_assert_eq!(a.covers(a_at, &b, b_at), bytes(&tile).is_subset(&bytes(&window)));
    }
}

fn strided() -> impl Strategy<Value = (DType, Vec<u64>, Vec<u64>, u64)> {
    let dtype = prop::sample::select(vec![DType::U8, DType::F16, DType::F32, DType::I64]);
    let dims = prop::collection::vec((1u64..5, 0u64..40), 1..4);
    (dtype, dims, 0u64..60).prop_map(|(dtype, dims, at)| {
        let (shape, strides) = dims.into_iter().unzip();
        (dtype, shape, strides, at)
    })
}

#[test]
fn field_s2_overflow_is_its_own_error() {
    let long = (1u64 << 31) + 1;
    // 2^62 elements apart fits 64 bits of elements, not of bytes.
    assert!(matches!(Layout::strided(&[long], &[1 << 31]), Err(LayoutError::Overflow { .. })));
    assert!(matches!(Layout::contiguous(&[1 << 32, 1 << 32]), Err(LayoutError::Overflow { .. })));
    assert!(matches!(Layout::contiguous(&[u64::MAX, 2]), Err(LayoutError::Overflow { .. })));
    assert!(matches!(Layout::strided(&[2, 2], &[u64::MAX, u64::MAX]), Err(LayoutError::Overflow { .. })));
    // Beyond 4 GiB nothing wraps.
    let layout = Layout::strided(&[long], &[4]).expect("32 GiB of f32");
    assert_eq!(layout.offset_of(&[1 << 31]).expect("inside"), 1 << 33);
    let region = Region { dtype: DType::F32, layout, offset_elems: 3 };
    assert_eq!(region.byte_of(&[1 << 31]).expect("inside"), (1 << 35) + 12);
    assert_eq!(region.slice(0, 1 << 31..long).expect("inside").offset_bytes(), (1 << 35) + 12);
    let (footprint, at) = Footprint::of_region(&region);
    assert_eq!((footprint.extent_bytes(), at), ((1 << 35) + 4, 12));
    assert!(overlaps(&footprint, at, &Footprint::interval(1), (1 << 35) + 12, ORDER_STEPS));
    assert!(!overlaps(&footprint, at, &Footprint::interval(12), (1 << 35) + 16, ORDER_STEPS));
    let far = Region { dtype: DType::F64, layout: Layout::contiguous(&[1]).expect("one"), offset_elems: u64::MAX / 4 };
    assert!(matches!(far.check_within(u64::MAX), Err(LayoutError::OutsideAllocation { .. })));
}

#[test]
fn field_s3_empty_view_anywhere() {
    let region = Region::contiguous(DType::F32, &[4, 6]).expect("small");
    let empty = region.slice(0, 9..9).expect("an empty slice lies anywhere");
    assert_eq!((empty.layout.num_elems(), empty.extent_bytes()), (0, 0));
    assert_eq!(empty.check_within(0), Ok(()));
    assert!(Footprint::of_region(&empty).0.is_empty());
    assert!(matches!(empty.byte_of(&[0, 0]), Err(LayoutError::IndexOutOfBounds { .. })));
    let (start, end) = (3, 2);
    assert!(matches!(region.slice(0, start..end), Err(LayoutError::SliceOutOfBounds { .. })));
    let none = Region::contiguous(DType::F32, &[0, 6]).expect("no rows");
    assert_eq!(none.reshape(&[3, 0]).expect("0 elements are 0 elements").layout.num_elems(), 0);
    assert!(!overlaps(&Footprint::of_region(&none).0, 5, &Footprint::interval(64), 0, ORDER_STEPS));
}

#[test]
fn field_s12_index_rank() {
    let region = Region::contiguous(DType::F32, &[4, 6]).expect("small");
    for index in [&[][..], &[3], &[1, 2, 0]] {
        assert_eq!(
            region.byte_of(index),
            Err(LayoutError::IndexRank { index: index.to_vec(), rank: 2 }),
            "an index of another rank never names an element"
        );
    }
    let inside_the_allocation_only = [0, 6];
    assert!(matches!(region.byte_of(&inside_the_allocation_only), Err(LayoutError::IndexOutOfBounds { .. })));
    let scalar = region.index(0, 1).and_then(|row| row.index(0, 2)).expect("inside");
    assert_eq!(scalar.byte_of(&[]), Ok(32));
}
