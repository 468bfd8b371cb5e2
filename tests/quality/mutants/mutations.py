"""The mutations: what each takes away, and the tests that have to miss it.

The first 22 are those of the review of 18 November 2026; the others are in what outsiders call in SQL.
"""

from __future__ import annotations

from tests.quality.mutants.mutation import Mutation

RECHECKS = "tests/store/test_rechecks.py"
ROUNDS = "tests/features/children/test_children_rounds.py"
SIGNAL_RACES = "tests/crash/signals/test_signal_races.py"
JOIN_RACES = "tests/crash/children/test_join_races.py"
REFUSALS = "tests/surfaces/sql_and_drivers/test_sql_refusals.py"
BOUNDS = "tests/surfaces/sql_and_drivers/test_sql_bounds.py"

REVIEWED = (
    Mutation(
        "commit without a fence", "instances/commit",
        "i.worker_id = o.worker_id and i.fence = o.fence and", "i.worker_id = o.worker_id and",
        (f"{RECHECKS}::test_a_commit_of_an_ended_claim_changes_nothing",),
    ),
    Mutation(
        "park without a recheck", "signals/recheck",
        "and i.status || '' = 'awaiting_signal'", "and false",
        (f"{SIGNAL_RACES}::test_a_park_does_not_wait_for_an_uncommitted_delivery_and_sees_it_later",),
    ),
    Mutation(
        "recheck without the seen ids", "signals/recheck",
        "                and not s.id = any (p.handed)\n", "",
        (f"{SIGNAL_RACES}::test_a_signal_that_the_step_has_seen_does_not_wake_its_next_await",),
    ),
    Mutation(
        "deliver without a lock", "signals/deliver",
        "  for no key update\n", "",
        (SIGNAL_RACES,),
    ),
    Mutation(
        "dedup key forgotten at consumption", "signals/consume",
        "s.dedup_key is not null as is_remembered", "false as is_remembered",
        ("tests/features/signals/test_dedup.py",),
    ),
    Mutation(
        "child counted at every end", "instances/commit",
        "case when i.joined and not m.was_joined and i.continues_unit_id is null then i.parent_id end as joins",
        "case when i.joined and i.continues_unit_id is null then i.parent_id end as joins",
        (f"{JOIN_RACES}::test_a_child_that_was_joined_and_retried_does_not_count_again",
         f"{ROUNDS}::test_rule_6_a_child_retried_by_an_operator_does_not_join_twice"),
    ),
    Mutation(
        "round of a child ignored, fast path", "instances/commit_fast",
        " and i.round = e.parent_round", "",
        (ROUNDS, f"{RECHECKS}::test_an_end_of_an_earlier_round_is_committed_and_not_counted"),
    ),
    Mutation(
        "round of a child ignored, full path", "children/join",
        " and i.round = e.parent_round", "",
        (ROUNDS,),
    ),
    Mutation(
        "claim for update", "instances/claim",
        "  for no key update skip locked\n), judged", "  for update skip locked\n), judged",
        ("tests/crash/claims/test_claim_races.py",),
    ),
    Mutation(
        "prune takes children of live parents", "instances/prune",
        "(p.status not in ('done', 'failed', 'cancelled') or i.continues_unit_id is not null)",
        "(i.continues_unit_id is not null)",
        ("tests/crash/instances/test_prune_races.py", "tests/features/instances/test_pruner.py"),
    ),
    Mutation(
        "reap without a second look at the lease", "instances/reap",
        "\n    and (w.id is null or w.lease_until <= pg_catalog.now())", "",
        ("tests/crash/commits/test_commit_races.py",),
    ),
    Mutation(
        "batch inserted in no order of keys", "instances/start",
        '  order by e.tenant collate "C", e.key collate "C", e.position\n', "  order by e.position\n",
        ("tests/crash/instances/test_identity_races.py",),
    ),
    Mutation(
        "reap counts no crash", "instances/reap",
        "crashes = i.crashes + l.crashed::integer,", "crashes = i.crashes,",
        ("tests/worker/test_crashes.py",),
    ),
    Mutation(
        "retry forgets what was awaited", "operators/retry",
        "'awaiting_signal' and i.awaits is not null\n", "'awaiting_signal' and false\n",
        ("tests/features/operators/test_retry.py",),
    ),
    Mutation(
        "done keeps its inbox", "signals/drop",
        "i.status || '' = 'done'", "false",
        ("tests/features/signals/test_awaits.py", "tests/features/signals/test_packs.py"),
    ),
    Mutation(
        "parents locked without skip locked", "children/lock_parents",
        "  for no key update skip locked\n", "  for no key update\n",
        (f"{JOIN_RACES}::test_a_group_commit_of_50_does_not_wait_for_one_locked_parent",),
    ),
    Mutation(
        "late completion admitted", "interactions/complete",
        "           when q.deadline <= stepwell.now() then 'late'\n", "",
        ("tests/features/interactions/test_completion.py",),
    ),
    Mutation(
        "token not required", "interactions/complete",
        "case when u.requires_token then 'token' end", "null",
        ("tests/features/interactions/test_tokens.py",),
    ),
    Mutation(
        "window ignored", "await_units/append",
        "n.first + g.place - 1 < n.before + n.space as is_out", "true as is_out",
        ("tests/features/interactions/test_each.py::test_no_more_items_are_dispatched_than_the_window",
         "tests/features/interactions/test_dispatcher.py::test_items_go_out_in_their_order_through_the_window"),
    ),
    Mutation(
        "outputs in the order of their ends", "await_units/outputs",
        "order by i.parent_round, i.child_index", "order by i.finished_at",
        ("tests/features/pipelines/test_items.py::test_the_parent_continues_once_with_all_outputs_in_item_order",
         "tests/features/pipelines/test_items.py::test_an_item_gives_no_or_several_outputs_and_all_keep_item_order"),
    ),
    Mutation(
        "interactions of a dead sender not returned", "interactions/release_lost",
        "and (w.id is null or w.lease_until <= pg_catalog.now())", "and false",
        ("tests/features/interactions/test_reconciler.py::test_sendings_of_a_dead_worker_are_repeated_and_are_no_damage",),
    ),
    Mutation(
        "end of a unit leaves siblings open", "await_units/settle",
        "where q.unit_id = any (array(select s.id from sized s where s.is_small))", "where false",
        ("tests/features/interactions/test_each.py::test_a_timeout_with_fail_ends_all_items",
         "tests/features/pipelines/test_items.py::test_an_item_that_fails_for_good_fails_its_parent_and_ends_its_siblings"),
    ),
)  # fmt: skip

DOORS = (
    Mutation(
        "signal to an id compares no tenant", "signals/deliver",
        " and i.tenant || '' = g.tenant", "",
        (f"{REFUSALS}::test_a_tenant_beside_an_id_must_be_the_instances_own",
         "tests/features/instances/test_tenant_beside_id.py"),
    ),
    Mutation(
        "cancel of an id compares no tenant", "stepwell.try_cancel",
        " and (try_cancel.id is null or try_cancel.tenant is null or i.tenant || '' = try_cancel.tenant)", "",
        (f"{REFUSALS}::test_a_tenant_beside_an_id_must_be_the_instances_own",),
    ),
    Mutation(
        "completion compares no tenant", "interactions/find",
        "i.tenant || '' = g.tenant", "true",
        ("tests/features/interactions/test_completion.py::test_an_interaction_of_another_tenant_is_unknown",),
    ),
    Mutation(
        "completion takes a token under a retired key", "interactions/complete",
        "when g.token_key = any (array(select r.key_id from stepwell.retired_token_keys r)) then", "when false then",
        ("tests/features/interactions/test_tokens.py::test_a_retired_key_verifies_no_token_until_it_is_reinstated",),
    ),
    Mutation(
        "completion takes a token that was not issued", "stepwell.complete",
        "'seal', seal,", "'seal', null,",
        ("tests/features/interactions/test_tokens.py::test_a_token_that_was_changed_is_refused",),
    ),
    Mutation(
        "reply checked beside a refused token", "interactions/complete",
        "           when coalesce(m.refusal, m.past) is not null then null\n", "",
        ("tests/features/interactions/test_tokens.py::test_the_engine_checks_no_reply_beside_a_token_that_is_refused",),
    ),
    Mutation(
        "reply measured beside a refused token", "stepwell.complete",
        "array[false, true]", "array[true]",
        ("tests/features/interactions/test_tokens.py::test_sql_checks_no_reply_beside_a_token_that_is_refused",),
    ),
    Mutation(
        "reply of any size", "stepwell.complete",
        "if problem is not null then", "if false then",
        ("tests/features/interactions/test_completion.py::test_a_reply_that_is_too_large_is_refused_with_the_limit",),
    ),
    Mutation(
        "reply of any type", "stepwell._reply_problem",
        "return format('reply%s: ', judged.place) || judged.problem;", "return null;",
        ("tests/features/interactions/test_completion.py::test_a_reply_of_the_wrong_type_leaves_the_interaction_open",),
    ),
    Mutation(
        "signal ignores its dedup key", "stepwell.signal",
        "array[signal.dedup_key]", "array[null::text]",
        ("tests/surfaces/sql_and_drivers/test_sql_signals.py::test_the_same_dedup_key_has_one_effect",),
    ),
    Mutation(
        "start passes over an occupied key", "stepwell.start",
        "if started.is_duplicate and if_exists = 'raise' then", "if false then",
        ("tests/surfaces/sql_and_drivers/test_sql.py::test_an_occupied_key_is_refused_with_its_holders_id",),
    ),
    Mutation(
        "start at a step that is not there", "stepwell._start_problem",
        "when step <> all (steps) then", "when false then",
        (f"{REFUSALS}::test_a_bad_start_is_refused_with_the_same_field_in_sql_and_python",),
    ),
    Mutation(
        "start takes its state for checked", "stepwell.start",
        "array[true], array[stepwell._needs(", "array[false], array[stepwell._needs(",
        ("tests/surfaces/sql_and_drivers/test_unchecked.py::test_a_state_that_does_not_fit_fails_with_its_path",),
    ),
    Mutation(
        "batch of any number of entries", "stepwell._check_shape",
        "jsonb_array_length(value) > most then", "false then",
        (f"{BOUNDS}::test_a_batch_has_at_most_ten_thousand_entries",),
    ),
    Mutation(
        "batch of any size", "stepwell._check_shape",
        "pg_column_size(value) > most_bytes then", "false then",
        (f"{BOUNDS}::test_a_batch_has_bounded_bytes",),
    ),
    Mutation(
        "numbers of an entry unbounded", "stepwell._check_shape",
        "abs(f.value::numeric) >= 1e20 or scale(f.value::numeric) > 100", "false",
        (f"{BOUNDS}::test_numbers_of_an_entry_itself_are_bounded",),
    ),
    Mutation(
        "unknown fields of an entry taken", "stepwell._check_shape",
        "where not fields ? f.key or ", "where ",
        (REFUSALS,),
    ),
    Mutation(
        "problems of a whole batch are searched", "stepwell.start_many",
        "    limit 1\n", "",
        (f"{BOUNDS}::test_a_batch_is_not_read_beyond_its_first_problem",),
    ),
    Mutation(
        "problems of all signals are looked for", "stepwell.signal_many",
        "    limit 1\n", "",
        (f"{BOUNDS}::test_a_batch_is_not_read_beyond_its_first_problem",),
    ),
    Mutation(
        "anyone vouches for a state", "stepwell.start_many",
        "has_table_privilege(session_user, 'stepwell.instance_data', 'insert')", "true",
        (f"{BOUNDS}::test_a_client_that_says_checked_passes_no_check",
         f"{BOUNDS}::test_only_a_role_that_may_write_states_can_mark_them_checked"),
    ),
    Mutation(
        "the doors' owner vouches for a state", "stepwell.start_many",
        "has_table_privilege(session_user,", "has_table_privilege(current_user,",
        (f"{BOUNDS}::test_only_a_role_that_may_write_states_can_mark_them_checked",),
    ),
    Mutation(
        "signals compare no tenant", "stepwell.signal_many",
        "coalesce(c.tenant, case when c.id is null then '' end)", "null::text",
        (f"{REFUSALS}::test_a_tenant_beside_an_id_must_be_the_instances_own",),
    ),
    Mutation(
        "payload of any size in jsonb", "stepwell._payload_problem",
        "pg_column_size(value) > 4 * largest + 1024 then", "false then",
        (f"{BOUNDS}::test_a_payload_is_bounded_before_its_values_are_read",),
    ),
    Mutation(
        "payload of any size as text", "stepwell._payload_problem",
        "if octet_length(written) > largest then", "if false then",
        (f"{BOUNDS}::test_values_beyond_the_bounds_are_refused_by_all_public_functions",),
    ),
    Mutation(
        "payload of any number of values", "stepwell._payload_problem",
        "if found > most then\n", "if false then\n",
        (f"{BOUNDS}::test_values_beyond_the_bounds_are_refused_by_all_public_functions",),
    ),
    Mutation(
        "payload with numbers of any length", "stepwell._payload_problem",
        "(@ >= 1e1000 || @ <= -1e1000", "(@ >= 1e2000000 || @ <= -1e2000000",
        (f"{BOUNDS}::test_numbers_that_are_long_in_text_are_refused_before_they_are_written",),
    ),
    Mutation(
        "facts of a token of any kind", "stepwell._token_facts",
        "when jsonb_path_query_array(", "when true or jsonb_path_query_array(",
        (f"{BOUNDS}::test_numbers_in_the_facts_of_a_token_are_not_written_as_text",),
    ),
    Mutation(
        "correlation without the secret", "stepwell._correlation",
        "sha256(secret || ", "sha256(",
        ("tests/features/interactions/test_tokens.py::test_a_correlation_cannot_be_guessed",),
    ),
    Mutation(
        "reply checked without end", "stepwell._schema_problem",
        "if budget < 0 then", "if false then",
        ("tests/features/interactions/test_schema_problem.py::test_branches_without_a_tag_are_tried_within_a_budget",),
    ),
    Mutation(
        "tag of a union not looked at", "stepwell._schema_problem",
        "if kind = 'object' and schema ? 'discriminator' then", "if false then",
        ("tests/features/interactions/test_schema_problem.py::test_twelve_thousand_values_of_ordinary_types_are_checked",),
    ),
    Mutation(
        "numbers beyond floats taken for floats", "stepwell._schema_problem",
        "abs(value::numeric) >= 1.7976931348623158e308", "false",
        ("tests/features/interactions/test_schema_problem.py::test_sql_and_the_type_agree_about_examples",),
    ),
    Mutation(
        "changed items asked about", "await_units/append",
        "  where n.is_open and n.first + g.place - 1 >= n.before and not exists (select from differing)\n",
        "  where n.is_open and n.first + g.place - 1 >= n.before\n",
        ("tests/features/interactions/test_sources.py::test_a_chunk_of_old_and_new_items_asks_nothing_if_an_old_one_differs",),
    ),
    Mutation(
        "changed items counted", "await_units/append",
        "  where n.is_open and n.number > 0 and not exists (select from differing)\n",
        "  where n.is_open and n.number > 0\n",
        ("tests/features/interactions/test_sources.py::test_a_chunk_of_old_and_new_items_asks_nothing_if_an_old_one_differs",),
    ),
    Mutation(
        "views and row security taken for a table", "schema/find_foreign",
        "c.relkind <> 'r' or c.relrowsecurity", "false",
        ("tests/store/test_foreign_schema.py",),
    ),
    Mutation(
        "doors in any isolation", "stepwell._check_isolation",
        "not in ('read committed', 'read uncommitted')", "= 'none'",
        (f"{REFUSALS}::test_every_public_function_requires_read_committed",),
    ),
)  # fmt: skip

MUTATIONS = (*REVIEWED, *DOORS)
