//! The conformance suite: each promise of the store, once, held by every store.
//!
//! A case is `pub async fn name(h: &Harness)` in the file of its noun and a line
//! in the list below; the macro makes of it one test for SQLite in memory, one
//! for SQLite in a file and one for PostgreSQL. Each has a store of its own, so
//! all may run at once. PostgreSQL is found by `ROTA_TEST_POSTGRES`.
//!
//! Cases speak to the port alone. What only one store does is tested beside it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::too_many_lines, reason = "a test tells its whole story in one place")]
#![allow(clippy::wildcard_imports, reason = "every case uses most of the harness")]
#![allow(clippy::items_after_statements, reason = "short names belong where they are used")]

mod access;
mod after;
mod cancel;
mod claim;
mod dead;
mod ends;
mod enqueue;
mod fire;
mod frozen;
mod harness;
mod histories;
mod history;
mod jobs;
mod joins;
mod leases;
mod list;
mod logs;
mod model;
mod own;
mod place;
mod play;
mod reap;
mod schedules;
mod settle;
mod slots;
mod tokens;
mod unknown;
mod unreadable;
mod upkeep;
mod workers;

macro_rules! promises {
    ($($noun:ident { $($case:ident,)* })*) => {
        promises! { @store sqlite_memory SqliteMemory $($noun { $($case,)* })* }
        promises! { @store sqlite_file SqliteFile $($noun { $($case,)* })* }
        promises! { @store postgres Postgres $($noun { $($case,)* })* }

        /// Every case that is run, by noun.
        const LISTED: &[(&str, &str, &[&str])] =
            &[$((stringify!($noun), include_str!(concat!(stringify!($noun), ".rs")), &[$(stringify!($case)),*])),*];
    };
    (@store $module:ident $backend:ident $($noun:ident { $($case:ident,)* })*) => {
        mod $module {
            $(mod $noun {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let harness = crate::harness::Harness::open(crate::harness::Backend::$backend).await;
                    crate::$noun::$case(&harness).await;
                    harness.close().await;
                })*
            })*
        }
    };
}

promises! {
    unreadable {
        a_claim_goes_on_beside_an_unreadable_run,
        an_owner_reads_on_beside_an_unreadable_run,
        promotion_goes_on_beside_an_unreadable_run,
        reaping_goes_on_beside_an_unreadable_run,
        sweeping_goes_on_beside_an_unreadable_run,
        an_unreadable_run_gives_its_slot_back,
        a_readable_run_is_not_discarded,
        an_unreadable_run_is_shown_as_it_is_stored,
        lists_of_runs_go_on_past_unreadable_ones,
        lists_of_definitions_go_on_past_unreadable_ones,
        a_run_of_an_unknown_status_is_left_as_it_is,
        what_every_node_reads_goes_on_past_unreadable_rows,
        lists_of_who_may_ask_go_on_past_unreadable_rows,
        records_are_read_on_past_unreadable_rows,
        a_schedule_with_an_unreadable_cursor_is_armed_anew,
        an_unreadable_schedule_is_in_nobodys_way,
        a_run_of_a_broken_status_is_left_as_it_is,
        setting_a_run_aside_adds_100_to_its_status_once,
        what_nothing_depends_on_is_discarded,
    }
    jobs {
        versions_are_immutable_and_listed_newest_first,
        an_identical_document_makes_no_new_version,
        going_back_is_a_new_version,
        what_the_saver_expects_is_respected,
        racing_editors_make_one_version,
        racing_makers_of_one_name_make_one_job,
        deleting_a_job_ends_its_schedules_and_keeps_its_history,
        what_a_deletion_asks_of_the_runs_is_kept,
        a_deleted_jobs_name_is_free,
        names_are_unique_in_their_tenant,
        a_job_named_twice_in_a_batch_is_saved_in_order,
        jobs_are_listed_by_name_with_filters_and_pages,
        pauses_are_kept_with_their_note,
        a_pause_that_is_set_again_forgets_nothing,
        a_change_of_a_pause_wakes_what_it_holds,
        a_pause_in_a_dry_run_answers_as_the_act_and_pauses_nothing,
        tenants_are_saved_by_name,
        a_lane_keeps_its_mode,
        racing_makers_of_one_lane_agree,
        calendars_are_saved_by_name,
        a_job_that_is_saved_in_a_dry_run_is_not_there,
    }
    schedules {
        a_saved_schedule_is_found_by_id_and_job,
        codes_are_read_where_names_are_written,
        reserved_ids_are_apart,
        an_edit_is_guarded_by_what_its_saver_read,
        an_edit_after_a_fire_is_stale,
        an_edit_after_a_round_of_after_finish_is_stale,
        what_is_behind_an_edited_schedule_is_kept,
        an_edit_moves_the_cursor,
        a_taken_name_is_stale,
        a_deleted_schedule_owes_nothing_and_frees_its_name,
        a_job_is_saved_with_its_schedules_or_not_at_all,
        a_thousand_schedules_are_saved_at_once,
        a_walk_finds_the_schedules_that_deserve_a_closer_look,
        a_cursor_is_moved_or_taken_away_only_as_it_was_read,
        schedules_are_listed_with_filters,
        active_schedules_of_a_tenant_are_counted_up_to_a_bound,
        schedules_due_in_a_second_are_counted_up_to_a_bound,
    }
    fire {
        a_fire_makes_the_run_and_advances_the_cursor,
        live_runs_of_a_schedule_are_read_up_to_the_limit,
        a_last_fire_leaves_no_cursor,
        a_repeated_fire_makes_no_second_run,
        a_schedule_named_twice_in_a_batch_fires_once,
        nodes_firing_at_once_make_each_run_once,
        each_item_stands_for_itself,
        a_fire_planned_before_an_edit_is_stale,
        a_fire_planned_before_its_job_was_edited_is_stale,
        a_fire_planned_before_a_delete_is_stale,
        a_fire_planned_before_a_pause_is_stale,
        a_fire_that_knows_old_pauses_is_stale,
        each_part_of_the_guard_counts,
        a_fired_run_of_an_owned_lane_is_handed_to_the_firing_owner,
        a_refused_run_is_a_recorded_skip,
        skips_in_a_row_are_kept_as_one_range,
        a_fire_between_keeps_skips_apart,
        skips_are_listed_newest_first,
        a_fire_asks_earlier_runs_to_stop,
        due_cursors_come_in_order_and_limited,
        a_jittered_cursor_is_due_later_than_planned,
        a_chain_of_runs_has_a_tie_for_each,
        the_end_of_a_waiting_run_lets_nobody_past_those_before_it,
        runs_of_one_fire_follow_each_other,
        a_chain_holds_while_its_runs_end_and_are_made_at_once,
        every_kind_of_end_rearms_an_after_finish_schedule,
        the_end_of_a_run_counts_although_a_cursor_stands_in_its_way,
        an_end_in_the_past_does_not_lead_back_to_a_decided_instant,
        ends_without_a_start_rearm_too,
        a_refused_rearming_run_does_not_kill_its_schedule,
        a_retry_does_not_rearm,
        the_end_of_a_run_arms_no_deleted_schedule,
        the_end_of_a_run_arms_no_schedule_that_is_off_or_over,
        an_edit_that_counts_on_a_run_is_stale_after_its_end,
        a_rearmed_schedule_fires_again,
    }
    after {
        an_end_is_written_down_for_those_who_wait_for_it,
        every_kind_of_end_counts,
        an_end_leads_to_a_run_exactly_once,
        two_nodes_make_one_run_of_one_end,
        a_job_that_was_changed_meanwhile_is_read_again,
        a_held_end_waits_for_the_next,
        a_refused_or_skipped_run_is_kept_as_skipped,
        jobs_that_would_start_each_other_are_refused,
        an_edit_or_a_delete_ends_the_waiting,
    }
    ends {
        a_cancel_names_those_it_ended_at_once,
        a_sweep_names_those_it_ended,
        a_reap_names_those_it_ended,
        a_newcomer_names_those_that_made_room,
        a_write_asked_again_names_nobody_else,
        a_settlement_names_nobody,
    }
    enqueue {
        every_field_survives_the_store,
        every_field_survives_the_move_to_history,
        a_delayed_run_is_scheduled,
        a_unique_key_admits_one_until_its_time,
        a_run_may_have_two_unique_keys,
        a_unique_key_outlives_its_run,
        a_refused_run_holds_no_unique_key,
        a_dry_run_is_answered_as_the_act_and_makes_nothing,
        a_duplicate_takes_no_slot,
        many_makers_of_one_unique_key_make_one_run,
        a_request_key_answers_as_it_did,
        a_request_key_is_known_to_be_answered_while_it_counts,
        a_request_key_with_another_body_is_refused,
        a_request_key_is_its_tenants_and_ends,
        a_keyed_write_asked_again_is_answered_as_it_was,
        fifty_requests_under_one_key_at_once_make_one,
        an_inbox_row_is_consumed_with_its_runs_exactly_once,
        two_nodes_consuming_one_inbox_row_make_its_run_once,
        empty_batches_are_answered,
        a_run_id_that_is_taken_is_refused,
        a_nul_in_a_text_is_refused_and_harms_nobody,
        extreme_times_are_stored,
        a_large_batch_is_made_whole,
    }
    slots {
        no_more_than_the_limit_hold_a_slot,
        what_stands_before_a_run_is_told,
        keys_are_apart,
        a_batch_of_releases_admits_as_many_in_order,
        a_full_queue_refuses,
        skip_and_reject_make_no_run,
        replace_displaces_all_that_waited,
        replacing_within_a_batch_leaves_the_last,
        cancel_running_asks_the_holders_to_stop,
        cancel_running_ends_a_queued_holder_at_once,
        every_end_of_a_holder_admits_the_next,
        a_parked_run_keeps_its_slot,
        cancel_sweep_reap_and_release_admit_the_next,
        one_that_waited_and_went_is_not_counted,
        a_promoted_run_waits_its_turn,
        the_newest_limit_holds,
        a_raised_limit_and_a_cancelled_holder_leave_no_slot_empty,
        a_new_run_that_is_let_in_at_once_is_handed_over,
        slots_released_and_taken_at_once_neither_leak_nor_overflow,
        a_recount_leaves_keys_of_delayed_runs_alone,
        a_wrong_counter_is_repaired_and_admits,
    }
    claim {
        a_claim_leases_with_a_raised_fence,
        one_write_leases_to_many_workers,
        a_share_is_leased_in_order,
        each_share_is_kept_to_its_pair_and_number,
        no_more_than_asked_for_are_leased,
        a_share_does_not_look_below_its_low_key,
        a_run_of_an_owned_lane_cannot_be_claimed,
        only_queued_runs_are_leased,
        no_run_is_leased_twice_by_many_claimers_at_once,
        a_claim_asked_again_returns_the_same_runs,
        an_empty_claim_asked_again_stays_empty,
        a_claim_in_vain_extends_nothing,
        extending_tells_lost_unlisted_and_cancelling,
        an_extended_lease_is_not_reaped,
        release_hands_back_everything_a_worker_holds,
        ready_pairs_name_each_pair_with_its_first_key,
    }
    own {
        the_run_that_waits_longest_is_found,
        a_run_in_a_held_partition_is_handed_to_its_maker,
        a_run_in_anothers_partition_leaves_a_notice_exactly_there,
        a_writer_that_holds_nothing_is_handed_nothing,
        a_former_owner_is_handed_nothing,
        an_owner_settles_a_queued_run_without_a_claim,
        an_owned_run_is_retried_and_handed_over_again,
        a_marked_run_is_running_and_settles_under_the_same_lease,
        a_stale_mark_changes_nothing,
        a_new_owner_finds_the_runs_still_queued,
        an_inherited_run_can_be_leased_in_writing,
        an_attempt_in_flight_becomes_a_lease_under_the_same_fence,
        an_attempt_that_was_marked_or_asked_to_stop_becomes_a_lease_too,
        only_the_owner_turns_attempts_into_leases,
        a_leased_attempt_that_vanishes_is_lost,
        leasing_attempts_leaves_slots_as_they_were,
        a_marked_run_of_a_dead_owner_can_be_leased_by_the_next,
        windows_over_equal_keys_return_each_run_once_and_in_order,
        each_window_answers_for_itself,
        promotion_goes_by_time_and_keeps_it,
        only_the_holder_of_a_partition_promotes_there,
        a_cancel_of_an_owned_run_is_left_to_its_owner,
        what_becomes_ready_unnamed_leaves_a_notice_for_the_writer_too,
    }
    settle {
        a_settled_run_moves_to_history_with_its_verdict,
        the_first_start_of_a_leased_run_stays_known,
        the_first_start_of_an_owned_run_stays_known,
        the_first_failed_attempt_tells_what_the_release_before_did_not_write,
        a_lease_that_was_reaped_cannot_settle,
        a_lease_that_was_replaced_cannot_settle,
        a_lease_settles_once,
        a_retried_attempt_cannot_be_settled_again,
        a_stale_lease_reports_no_progress,
        a_forged_lease_changes_nothing,
        a_run_that_nobody_claimed_cannot_be_settled_by_lease,
        a_leased_run_cannot_be_settled_as_its_partitions_owner,
        answers_come_in_the_order_asked,
        a_run_named_twice_in_a_batch_is_settled_once,
        a_stale_settlement_beside_a_good_one_does_not_spoil_it,
        each_outcome_is_stored_as_decided,
        a_run_out_of_attempts_is_dead_with_the_trail_of_all,
        a_former_owners_epoch_cannot_settle,
        a_forged_epoch_changes_nothing,
        many_settling_one_lease_at_once_give_one_verdict,
    }
    cancel {
        a_run_that_was_not_started_is_cancelled_at_once,
        a_parked_run_is_cancelled_at_once,
        a_running_run_is_asked_once,
        each_end_while_cancelling_is_as_the_spec_says,
        a_settlement_that_does_not_know_of_the_cancel_is_told,
        an_owner_that_does_not_know_of_the_cancel_is_told,
        a_grace_that_ran_out_ends_the_run,
        a_batch_answers_each_in_order,
        cancel_against_settle_gives_one_verdict_as_answered,
        cancel_against_claim_leaves_no_one_in_doubt,
        a_cancel_in_a_dry_run_answers_as_the_act_and_stops_nobody,
    }
    reap {
        a_lost_run_comes_back_at_no_cost_of_an_attempt,
        a_run_that_keeps_losing_its_worker_is_dead,
        only_the_vanished_workers_runs_are_reaped,
        a_lost_run_that_was_asked_to_stop_is_cancelled,
        reaping_keeps_to_its_limit_and_finds_the_rest,
        reap_against_settle_gives_one_fate,
        two_reapers_count_one_loss,
        a_start_deadline_ends_what_still_waits,
        a_deadline_ends_whatever_waits,
        a_run_given_back_before_it_began_still_expires,
        a_started_run_does_not_expire,
        a_sleep_that_is_over_wakes_the_run,
        a_wait_is_opened_once,
        a_sweep_leaves_owned_runs_to_their_owner,
        a_sweep_is_not_stopped_by_what_it_leaves_alone,
        a_sweep_keeps_to_its_limit,
    }
    joins {
        a_join_that_should_have_opened_is_opened,
        a_join_opens_with_the_last_of_its_needs,
        needs_settled_in_one_batch_open_the_join_once,
        every_kind_of_end_opens_the_join,
        a_retry_opens_nothing,
        needs_that_ended_before_count_as_ended,
        a_need_named_twice_is_one_need,
        a_chain_in_one_batch_opens_link_by_link,
        a_run_waits_for_no_other_tenants_run,
        a_cancelled_join_opens_those_behind_it,
        a_join_asks_for_its_slot_when_it_opens,
        a_delayed_join_waits_for_its_time_too,
        last_siblings_settling_at_once_open_the_join_once,
        a_need_that_ends_while_the_join_is_made_is_not_missed,
        a_parent_is_ready_when_its_last_child_ends,
        a_parent_waits_for_ten_thousand_children,
        a_child_that_ends_before_its_parent_parks_is_counted,
        a_child_that_ends_in_the_write_that_parks_its_parent_counts_once,
        children_ending_while_their_parent_parks_are_counted,
    }
    leases {
        every_partition_is_there_from_the_start,
        a_node_that_has_not_beaten_takes_nothing,
        a_live_nodes_partition_is_not_taken,
        taking_again_keeps_the_epoch,
        a_lapsed_nodes_partition_is_taken_with_a_raised_epoch,
        a_late_beat_after_a_takeover_is_stale,
        a_late_beat_without_a_takeover_is_applied,
        leaving_frees_everything_at_once,
        giving_is_guarded_by_the_epoch,
        nodes_are_those_whose_word_holds,
        racing_takers_get_each_partition_once,
    }
    tokens {
        tokens_are_given_as_the_rate_decides,
        tokens_that_are_not_there_yet_can_be_reserved,
        a_key_named_twice_in_a_batch_has_one_bucket,
        many_takers_at_once_never_exceed_the_rate,
    }
    history {
        output_failure_and_trail_survive_the_move,
        a_long_trail_is_bounded,
        roll_ups_equal_a_count,
        roll_ups_of_many_settling_at_once_lose_nothing,
    }
    list {
        live_runs_come_first_then_ended_ones_by_their_end,
        pages_are_complete_and_without_repeats,
        every_filter_finds_what_a_full_look_finds,
        both_kinds_of_blocked_are_blocked,
        a_run_that_is_known_to_have_begun_counts_as_running,
        limits_are_clamped,
        a_query_that_matches_nothing_ends,
        runs_are_found_by_id_live_and_ended,
        a_run_that_ends_between_pages_is_on_one_page,
        runs_that_end_as_they_are_listed_are_listed_once,
    }
    logs {
        log_lines_come_back_in_order_and_pages,
        lines_appended_again_are_there_once,
        the_log_stays_when_the_run_ends,
    }
    unknown {
        enqueue_asked_again_makes_one_run_even_after_it_ended,
        enqueue_asked_again_refuses_what_it_refused,
        settle_asked_again_answers_and_wakes_as_before,
        a_retry_asked_again_costs_one_attempt,
        fire_asked_again_answers_as_before,
        promote_asked_again_hands_over_the_same,
        claim_asked_again_through_another_connection_is_the_same,
        one_claim_sent_twice_at_once_leases_once,
        one_enqueue_sent_twice_at_once_makes_once,
        marks_and_written_leases_asked_again_are_applied_still,
        attempts_leased_are_leased_once_however_often_asked,
        every_other_run_write_asked_again_answers_as_before,
        every_definition_write_asked_again_answers_as_before,
    }
    upkeep {
        upkeep_of_an_empty_store_ends,
        listing_is_the_same_before_and_after_upkeep,
        days_that_are_too_old_are_purged_and_others_kept,
        roll_ups_outlive_the_purge,
        batches_are_kept_as_long_as_asked,
        a_request_key_outlives_the_batches,
        upkeep_beside_work_loses_nothing,
        every_table_has_a_stated_bound_and_keeps_it,
        logs_live_as_long_as_their_runs,
        a_deleted_job_goes_once_nothing_is_kept_of_its_runs,
        a_version_goes_once_nothing_uses_it,
        old_roll_ups_go_and_kept_ones_count_as_before,
        an_ended_pause_goes_once_all_it_covered_is_decided,
    }
    access {
        a_token_is_found_by_its_digest_and_comes_back_whole,
        a_token_kept_again_is_left_as_it_is,
        tokens_users_and_jobs_of_a_tenant_are_counted,
        a_revoked_token_is_revoked_once_and_for_ever,
        the_last_use_of_a_token_only_grows,
        tokens_are_listed_newest_first_within_their_tenant,
        a_users_name_is_unique_in_its_tenant,
        racing_makers_of_one_user_make_one,
        a_user_is_changed_by_id_and_keeps_what_is_not_said,
        users_are_listed_by_name_within_their_tenant,
        a_session_shows_its_user_as_it_is_now,
        a_new_password_and_a_deletion_end_every_session,
        a_session_begun_before_a_change_of_its_user_is_stale,
        audit_entries_are_listed_newest_first_with_filters_and_pages,
        an_audit_entry_added_again_is_there_once,
        an_audit_page_bounds_its_look_and_misses_nothing,
        an_audit_page_that_cannot_be_read_goes_on,
        a_nul_in_a_name_is_refused,
        upkeep_takes_what_no_longer_counts,
    }
    dead {
        a_run_that_is_made_again_is_marked_with_its_maker,
        a_run_that_is_not_made_marks_nothing,
        a_dead_letter_is_put_away_once,
        a_redrive_counts_more_than_a_discard,
        a_mark_goes_after_its_run,
        a_dead_letter_is_open_until_somebody_deals_with_it,
        open_dead_letters_go_with_their_history,
        a_run_that_dies_is_followed_by_one_run,
        a_dead_run_that_is_followed_counts_as_made_again,
        a_follower_waits_for_its_time_and_its_slot,
        a_follower_begins_as_scheduled_however_late_the_end_is_written,
        a_run_that_is_reaped_for_good_is_followed_as_often_as_its_terms_say,
    }
    play {
        a_store_agrees_with_the_model,
    }
    histories {
        a_concurrent_history_has_an_explanation,
        owners_that_replace_each_other_settle_each_run_once,
    }
    frozen {
        a_sample_holds_something_of_everything_and_goes_on,
        a_database_of_every_schema_is_read_and_goes_on,
    }
    workers {
        a_worker_is_listed_as_it_last_said,
        a_worker_that_is_to_drain_is_told_with_its_next_beat,
        a_tenants_workers_are_its_own_and_everybodys,
        a_worker_that_died_is_listed_for_a_day,
    }
}

macro_rules! beside_a_later_release {
    ($($noun:ident::$case:ident,)*) => {
        async fn beside_a_later_release(backend: harness::Backend) {
            $({
                let harness = harness::Harness::open_extended(backend).await;
                $noun::$case(&harness).await;
                harness.close().await;
            })*
        }
    };
}

// Each noun, and above all what inserts, copies and moves rows.
beside_a_later_release! {
    jobs::versions_are_immutable_and_listed_newest_first,
    jobs::pauses_are_kept_with_their_note,
    jobs::tenants_are_saved_by_name,
    jobs::calendars_are_saved_by_name,
    schedules::a_job_is_saved_with_its_schedules_or_not_at_all,
    schedules::an_edit_moves_the_cursor,
    fire::a_fire_makes_the_run_and_advances_the_cursor,
    fire::skips_in_a_row_are_kept_as_one_range,
    fire::every_kind_of_end_rearms_an_after_finish_schedule,
    joins::every_kind_of_end_opens_the_join,
    leases::taking_again_keeps_the_epoch,
    tokens::a_key_named_twice_in_a_batch_has_one_bucket,
    history::output_failure_and_trail_survive_the_move,
    history::roll_ups_equal_a_count,
    logs::lines_appended_again_are_there_once,
    unknown::every_other_run_write_asked_again_answers_as_before,
    unknown::every_definition_write_asked_again_answers_as_before,
    upkeep::listing_is_the_same_before_and_after_upkeep,
    upkeep::logs_live_as_long_as_their_runs,
    upkeep::days_that_are_too_old_are_purged_and_others_kept,
    access::a_token_is_found_by_its_digest_and_comes_back_whole,
    access::a_session_shows_its_user_as_it_is_now,
    access::an_audit_entry_added_again_is_there_once,
    dead::a_run_that_is_made_again_is_marked_with_its_maker,
    dead::a_dead_letter_is_open_until_somebody_deals_with_it,
    workers::a_worker_is_listed_as_it_last_said,
    unreadable::an_unreadable_run_is_shown_as_it_is_stored,
    play::a_store_agrees_with_the_model,
}

/// Nodes of this release run on, and start again, beside one that has already extended the
/// schema.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_a_later_release_has_extended_is_used_as_before() {
    beside_a_later_release(harness::Backend::SqliteFile).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_a_later_release_has_extended_is_used_as_before() {
    beside_a_later_release(harness::Backend::Postgres).await;
}

/// A promise that is written and not run is worse than none.
#[test]
fn every_case_is_listed() {
    for (noun, source, listed) in LISTED {
        let written = source.split("pub async fn ").skip(1).filter_map(|rest| rest.split_once("(h: &Harness)"));
        for (name, _) in
            written.filter(|(name, _)| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'))
        {
            assert!(listed.contains(&name) || HELPERS.contains(&name), "{noun}.rs: `{name}` is not in the list");
        }
    }
}

/// What cases share; no promises of their own.
const HELPERS: &[&str] = &["nothing_to_repair"];
