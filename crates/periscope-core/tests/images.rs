//! Images as files: the same after a round trip, refused when damaged, cut short or foreign, and never a panic.

use std::sync::Arc;

use periscope_core::dot::dot;
use periscope_core::graph::{EntryWrites, GraphBuilder, GraphLimits};
use periscope_core::image::{Image, ImageError};
use periscope_core::{
    Access, Comparison, CoreKind, DType, Direction, KernelId, KernelParam, KernelSignature, Layout, ObjectRegion,
    Predicate, Region, TaskDesc,
};
use proptest::prelude::*;

/// A graph with everything that an image can hold.
fn image() -> Image {
    let params =
        [Direction::In, Direction::Out].map(|direction| KernelParam { direction, dtype: None, optional: false });
    let kernels: Arc<[KernelSignature]> = Arc::new([
        KernelSignature { name: "ké\"y".into(), core: CoreKind::Cube, params: params.to_vec(), scalars: 2 },
        KernelSignature { name: "tail".into(), core: CoreKind::Vector, params: params.to_vec(), scalars: 2 },
    ]);
    let mut builder = GraphBuilder::new(GraphLimits::default());
    builder.begin(kernels);
    let input = builder.add_external(4096, EntryWrites::Only(vec![]));
    let segment = builder.add_segment(8192);
    let graph = builder.add_graph_object(segment, 4096, 4096);
    let matrix = Region::contiguous(DType::F32, &[32, 32]).expect("small");
    builder.add_entry("input", Direction::In, ObjectRegion { object: input, region: matrix });
    let tile = |object, row: u64, column: u64| {
        let region = matrix.slice(0, row..row + 8).and_then(|rows| rows.slice(1, column..column + 8)).expect("inside");
        ObjectRegion { object, region }
    };
    for i in 0..16 {
        let (row, column) = (i / 4 * 8, i % 4 * 8);
        let accesses = [
            Access { tensor: tile(input, column, row), direction: Direction::In, split_dim: None },
            Access { tensor: tile(graph, row, column), direction: Direction::Out, split_dim: Some(0) },
        ];
        let element = Region { dtype: DType::I32, layout: Layout::contiguous(&[]).expect("one"), offset_elems: i };
        let tensor = ObjectRegion { object: input, region: element };
        let predicate = Predicate { tensor, comparison: Comparison::Le, constant_bits: 5 };
        let blocks = if i % 2 == 0 { 4 } else { 1 };
        let kernels = [KernelId(0), KernelId(1)];
        builder
            .submit(&TaskDesc {
                kernels: if i % 3 == 0 { &kernels } else { &kernels[1..] },
                accesses: &accesses,
                scalars: &[i, 99],
                blocks,
                start_together: blocks > 1,
                predicate: (i % 5 == 0).then_some(predicate),
                tag: i as u32,
                ..TaskDesc::default()
            })
            .expect("a good task");
    }
    for _ in 0..20 {
        let whole = ObjectRegion { object: graph, region: matrix };
        let accesses = [Access { tensor: whole, direction: Direction::In, split_dim: None }];
        builder.submit(&TaskDesc { accesses: &accesses, ..TaskDesc::default() }).expect("a good join");
    }
    for i in 0..4 {
        let accesses = [Access { tensor: tile(graph, i * 8, 0), direction: Direction::InOut, split_dim: None }];
        builder.submit(&TaskDesc { accesses: &accesses, ..TaskDesc::default() }).expect("a good join");
    }
    builder.freeze(None).with_writes(&[(0, 16, vec![1, 2, 3]), (0, 0, vec![4; 16])])
}

/// Where the header keeps the checksum, and where the contents start.
const CHECKSUM: std::ops::Range<usize> = 8..16;
const CONTENTS: usize = 8 * (4 + 2 * 12);

fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.len() >= CONTENTS {
        let checksum = u64::from(crc32fast::hash(&bytes[CONTENTS..]));
        bytes[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    }
    bytes
}

#[test]
fn a_round_trip_keeps_everything() {
    let image = image();
    let bytes = image.encode();
    assert_eq!(sealed(bytes.clone()), bytes, "this file knows the header");
    let decoded = Image::decode(&bytes).expect("sound");
    assert_eq!(decoded, image);
    assert_eq!(decoded.payload(), &[&[1, 2, 3][..], &[4; 16]].concat());
    assert_eq!(decoded.name(decoded.entries()[0].name), Some("input"));
    assert!(decoded.tasks().iter().any(|task| task.flags & periscope_core::image::TASK_INFERRED_JOIN != 0));
}

#[test]
fn damaged_cut_short_and_foreign() {
    let bytes = image().encode();
    assert!(matches!(Image::decode(b"ELF"), Err(ImageError::Length { .. })));
    let mut foreign = bytes.clone();
    foreign[7] = 2;
    assert!(matches!(Image::decode(&foreign), Err(ImageError::Magic { .. })));
    for len in (0..bytes.len()).step_by(61) {
        assert!(matches!(Image::decode(&bytes[..len]), Err(ImageError::Length { .. })));
    }
    let mut longer = bytes.clone();
    longer.extend([0; 8]);
    assert!(matches!(Image::decode(&longer), Err(ImageError::Length { .. })));
    for position in (CONTENTS..bytes.len()).step_by(97) {
        let mut damaged = bytes.clone();
        damaged[position] ^= 0x10;
        assert!(matches!(Image::decode(&damaged), Err(ImageError::Checksum { .. })));
    }
}

#[test]
fn every_word_replaced_is_refused_or_sound() {
    let bytes = image().encode();
    for position in (8..bytes.len()).step_by(4) {
        for value in [0, 1, 0xff, 1 << 16, u32::MAX, u32::MAX - 1, 1 << 31] {
            let mut changed = bytes.clone();
            changed[position..position + 4].copy_from_slice(&value.to_le_bytes());
            // Must not panic; what is accepted can be read and drawn.
            if let Ok(image) = Image::decode(&sealed(changed)) {
                assert!(dot(&image).starts_with("digraph"));
            }
        }
    }
}

#[test]
fn drawings_name_kernels_and_edges() {
    let image = image();
    let text = dot(&image);
    assert!(text.contains("ké\\\"y + tail"));
    assert!(text.contains("4 blocks"));
    assert!(text.contains("shape=point"));
    assert_eq!(text.matches(" -> ").count(), image.successors().len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_damage_never_panics(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = image().encode();
        for (position, value) in flips {
            let position = 8 + position.index(bytes.len() - 8);
            bytes[position] = value;
        }
        if let Ok(image) = Image::decode(&sealed(bytes)) {
            assert!(dot(&image).starts_with("digraph"));
        }
    }
}
