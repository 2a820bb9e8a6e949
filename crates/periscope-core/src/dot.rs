//! A graph as a drawing: text for Graphviz.
//!
//! One node per task, in submission order: kernels, number, tag, blocks, and whether it is predicated. Joins are small; those
//! that inference added are points. Tasks of one kernel share a colour. The text is linear in tasks and edges.

use std::fmt::Write;

use crate::image::{Image, NO_KERNEL, TASK_INFERRED_JOIN, TASK_PREDICATED};

/// The image in the DOT language.
#[must_use]
pub fn dot(image: &Image) -> String {
    let tasks = image.tasks_and_end();
    let mut text = String::with_capacity(64 + 80 * tasks.len() + 16 * image.successors().len());
    text.push_str(
        "digraph periscope {\n  node [shape=box, style=filled, colorscheme=set312, fontname=\"monospace\"];\n",
    );
    for (number, task) in image.tasks().iter().enumerate() {
        write_task(&mut text, image, number, task);
    }
    for number in 0..image.task_count() {
        let successors = tasks[number].first_successor as usize..tasks[number + 1].first_successor as usize;
        for to in &image.successors()[successors] {
            writeln!(text, "  {number} -> {to};").expect("writing to a string");
        }
    }
    text.push_str("}\n");
    text
}

fn write_task(text: &mut String, image: &Image, number: usize, task: &crate::image::TaskRecord) {
    if task.flags & TASK_INFERRED_JOIN != 0 {
        writeln!(text, "  {number} [shape=point];").expect("writing to a string");
        return;
    }
    write!(text, "  {number} [label=\"").expect("writing to a string");
    let mut lanes = task.kernels.iter().filter(|&&kernel| kernel != NO_KERNEL).peekable();
    if lanes.peek().is_none() {
        text.push_str("join");
    }
    for (lane, &kernel) in lanes.enumerate() {
        if lane > 0 {
            text.push_str(" + ");
        }
        let name = image.kernels().get(usize::from(kernel)).and_then(|kernel| image.name(kernel.name));
        for letter in name.unwrap_or("?").chars() {
            match letter {
                '"' | '\\' => text.extend(['\\', letter]),
                '\n' => text.push_str("\\n"),
                _ => text.push(letter),
            }
        }
    }
    write!(text, "\\n{number} · tag {}", task.tag).expect("writing to a string");
    if task.blocks > 1 {
        write!(text, " · {} blocks", task.blocks).expect("writing to a string");
    }
    if task.flags & TASK_PREDICATED != 0 {
        text.push_str(" · if");
    }
    match task.kernels[0] {
        NO_KERNEL => text.push_str("\", shape=ellipse, fillcolor=white];\n"),
        kernel => writeln!(text, "\", fillcolor={}];", kernel % 12 + 1).expect("writing to a string"),
    }
}
