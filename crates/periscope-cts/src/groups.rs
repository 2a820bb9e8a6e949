//! The clauses, by what they are about.

mod buffer;
mod copy;
mod failure;
mod kernel;
mod launch;
mod map;
mod order;
mod window;

use crate::clause::Clause;

/// Clauses of one group from its functions.
macro_rules! group {
    ($group:literal: $($module:ident::$name:ident),* $(,)?) => {
        [$(Clause { group: $group, name: stringify!($name), test: $module::$name }),*]
    };
}

/// Every clause, in the order in which a report shows them.
#[must_use]
pub fn clauses() -> Vec<Clause> {
    let mut all = Vec::new();
    all.extend(group!("buffer":
        buffer::allocations_are_aligned_and_apart,
        buffer::untouched_memory_costs_nothing,
        buffer::freed_memory_returns_under_new_names,
        buffer::freeing_leaves_neighbours_alone,
        buffer::running_out_says_how_much,
        buffer::devices_share_nothing,
    ));
    all.extend(group!("copy":
        copy::bytes_arrive_exactly,
        copy::range_lists_touch_only_their_ranges,
        copy::copies_within_the_device_are_exact,
        copy::fills_are_exact,
        copy::calls_are_counted,
    ));
    all.extend(group!("map":
        map::host_and_device_see_each_others_bytes,
        map::only_an_identity_mapping_is_at_the_device_address,
        map::small_neighbours_are_mapped_apart,
        map::a_part_is_mapped_at_its_first_byte,
        map::an_ended_mapping_is_gone_and_its_bytes_stay,
        map::mapping_untouched_memory_costs_nothing,
        map::cycles_leak_nothing,
        map::a_refusal_is_final_and_harmless,
    ));
    all.extend(group!("window":
        window::a_closed_window_is_closed,
        window::bytes_pass_through_windows,
        window::a_read_window_stays_open_beside_readers,
        window::windows_of_neighbours_are_apart,
    ));
    all.extend(group!("kernel":
        kernel::arguments_are_the_views_that_were_submitted,
        kernel::scalars_tag_and_number_arrive,
        kernel::every_lane_runs_once,
        kernel::every_block_runs_once,
        kernel::split_parts_are_disjoint_and_complete,
        kernel::promised_blocks_share_the_whole,
        kernel::blocks_that_start_together_meet,
        kernel::predicates_compare_as_their_type_does,
        kernel::a_predicate_sees_what_earlier_tasks_wrote,
    ));
    all.extend(group!("launch":
        order::launches_follow_each_other,
        order::dependent_tasks_follow_each_other,
        order::independent_tasks_all_run,
        order::a_diamond_joins,
        order::random_graphs_respect_every_edge,
        order::explicit_edges_order,
        launch::pushes_come_before_kernels_and_after_earlier_launches,
        launch::writes_in_the_image_come_first,
        launch::an_image_can_be_launched_again,
        launch::bindings_start_where_they_say,
        launch::an_empty_graph_ends,
        launch::results_are_visible_to_whoever_learns_the_end,
        launch::polling_alone_is_enough,
        launch::a_wait_ends_in_time_and_says_what_runs,
        launch::many_threads_may_wait,
        launch::other_bytes_may_be_copied_meanwhile,
        launch::dropping_the_device_waits,
    ));
    all.extend(group!("failure":
        failure::a_panic_is_the_launchs_error,
        failure::a_kernels_error_is_the_launchs_error,
        failure::nothing_starts_after_a_failure,
        failure::a_failed_block_frees_those_who_wait_for_it,
        failure::later_launches_are_unharmed,
    ));
    all
}
