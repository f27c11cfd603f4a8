"""Which tests answer which public report of a fault in a tool that does this job.

The reports are listed beside the project (../shared/cases, A01 ... H15), each with the behaviour
that is right. A report is answered by tests of its whole kind, named here as FILE::TEST below
tests/, or by a reason why it can't apply. Nothing is tested here but the table itself.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.model_helpers import SHARED

TESTS = Path(__file__).parent
REPORTS = SHARED / "cases" / "reports.md"

LAYOUTS = "checkpoint/test_layouts.py::"
FIXTURES = "checkpoint/test_shared_fixtures.py::"
READER = "checkpoint/test_reader.py::"
GPTQ = "checkpoint/test_gptq.py::"
GPTQ_REFUSED = "checkpoint/test_gptq_refused.py::"
CONVERT = "checkpoint/test_convert.py::"
FAULTS = "test_reported_faults.py::"
ENGINE = "engine/test_engine.py::"
SCHEDULER = "engine/test_scheduler.py::"
TOKENIZER = "io/test_tokenizer.py::"
REQUESTS = "io/test_requests.py::"
PROMPTS = "io/test_prompts.py::"
STOPS = "io/test_stops.py::"
WRITER = "io/test_writer.py::"
WRITER_FAULTS = "io/test_writer_faults.py::"
GENERATE = "cli/test_generate.py::"
SHARDS = "distributed/test_tensor_parallel.py::"
GROUPS = "distributed/test_data_parallel.py::"
FAILURES = "distributed/test_failures.py::"
TASKS = "evaluation/test_tasks.py::"
SCORING = "evaluation/test_scoring.py::"
EVAL = "evaluation/test_eval_command.py::"
EVAL_FAULTS = "evaluation/test_reported_faults.py::"

ANSWERED: dict[str, list[str]] = {
    # checkpoints
    "A01": [
        LAYOUTS + "test_every_layout_comes_to_the_standard_weights",
        LAYOUTS + "test_layers_of_two_orientations_are_refused",
    ],
    "A02": [
        LAYOUTS + "test_every_layout_comes_to_the_standard_weights",
        CONVERT + "test_every_layout_becomes_the_same_model",
        FIXTURES + "test_logits_and_greedy_equal_the_reference",
    ],
    "A03": [
        FAULTS + "test_heads_of_the_cache_need_no_key_that_was_derived",
        ENGINE + "test_greedy_equals_transformers",
    ],
    "A04": [
        LAYOUTS + "test_the_model_agrees_with_the_plain_forward",
        CONVERT + "test_every_layout_becomes_the_same_model",
    ],
    "A05": [FAULTS + "test_another_architecture_is_told_what_is_accepted"],
    "A07": [
        LAYOUTS + "test_every_layout_comes_to_the_standard_weights",
        FAULTS + "test_neither_name_of_a_tied_embedding",
    ],
    "A08": [
        READER + "test_an_index_may_list_both_names_of_a_tied_embedding",
        FAULTS + "test_an_index_that_lists_an_embedding_no_shard_holds",
        READER + "test_unusable_folders_are_refused",
    ],
    "A10": [
        FAULTS + "test_scores_beyond_float16_are_no_fault",
        FAULTS + "test_flags_of_the_softmax_do_not_change_the_maths",
    ],
    "A14": [
        LAYOUTS + "test_what_fits_no_layout_is_refused",
        READER + "test_damaged_safetensors_are_named",
        "checkpoint/test_pickle_header.py::test_short_files_are_named_with_their_bytes",
    ],
    "A15": [
        "checkpoint/test_source.py::test_a_folder_is_itself_whatever_it_is_called",
        SHARDS + "test_shards_equal_the_whole_model",
    ],
    # text
    "B01": [
        REQUESTS + "test_the_other_spelling_is_remarked_upon",
        TOKENIZER + "test_the_underscore_spelling",
    ],
    "B03": [
        REQUESTS + "test_left_truncation_of_infilling_keeps_every_sentinel",
        "io/test_fim.py::test_truncation_keeps_what_is_next_to_the_gap",
        ENGINE + "test_batch_preemption_and_sharing_change_no_token",
    ],
    "B05": [TOKENIZER + "test_decoding_never_raises_and_never_cleans"],
    "B06": [
        TOKENIZER + "test_every_text_comes_back",
        TOKENIZER + "test_settings_that_change_the_text_are_not_honoured",
    ],
    "B07": [
        FAULTS + "test_nothing_depends_on_a_version_of_transformers",
        TOKENIZER + "test_decoding_never_raises_and_never_cleans",
    ],
    "B10": [TOKENIZER + "test_decoding_never_raises_and_never_cleans"],
    "B11": [
        STOPS + "test_a_token_that_runs_past_the_stop_and_a_stop_across_tokens",
        STOPS + "test_a_row_ends_at_the_token_where_a_naive_search_first_finds_a_stop",
        ENGINE + "test_stop_strings_cut_the_text",
    ],
    "B12": [FAULTS + "test_text_that_may_begin_a_stop_is_kept_where_the_row_ends"],
    "B13": [
        TOKENIZER + "test_a_sentinel_is_one_token_whatever_follows",
        REQUESTS + "test_infilling",
    ],
    "B14": [
        TOKENIZER + "test_file_separators_end_an_answer",
        FAULTS + "test_one_end_token_ends_its_own_row_and_is_in_no_text",
    ],
    "B16": [
        "engine/test_overlap.py::test_what_repeats_the_suffix_is_cut_and_kept",
        "engine/test_overlap.py::test_a_cut_inside_a_token_keeps_the_token_that_reaches_over_it",
        "engine/test_overlap.py::test_rows_without_a_suffix_lose_nothing",
        "io/test_fim.py::test_the_overlap_is_the_longest_there_is",
        GENERATE + "TestOptions::test_trim_overlap",
    ],
    "B17": [
        "io/test_fim.py::test_sentinels_are_found_by_their_spelling",
        TOKENIZER + "test_the_underscore_spelling",
    ],
    "B18": [
        FAULTS + "test_one_end_token_ends_its_own_row_and_is_in_no_text",
        ENGINE + "test_ends",
    ],
    # GPTQ
    "C01": [
        GPTQ + "test_any_mix_loads_exactly",
        GPTQ_REFUSED + "test_act_order_without_its_order_is_refused",
        "cli/test_gptq.py::test_the_summary_points_out_degenerate_output",
    ],
    "C02": [
        REQUESTS + "test_a_prompt_leaves_a_position_for_an_answer",
        FAULTS + "test_a_row_that_is_too_long_fails_alone_and_once",
    ],
    "C03": [
        GPTQ + "test_symmetric_values_overrule_the_label",
        "cli/test_inspect.py::test_values_that_overrule_a_label_are_told",
    ],
    "C04": [GPTQ + "test_every_form_loads_exactly", GPTQ + "test_zero_points_of_every_form"],
    "C05": [GPTQ + "test_zero_points_of_every_form", GPTQ + "test_any_mix_loads_exactly"],
    "C08": [
        GPTQ + "test_a_row_range_keeps_the_global_group_of_its_rows",
        SHARDS + "test_shards_equal_the_whole_model",
    ],
    "C11": [
        GPTQ + "test_settings_are_read_wherever_they_stand",
        GPTQ_REFUSED + "test_what_can_not_be_read_is_refused",
    ],
    "C14": [
        "model/test_gptq_layers.py::test_packed_equals_dequantised",
        "model/test_gptq_layers.py::test_the_bias_of_a_row_sharded_layer_is_on_rank_0_alone",
    ],
    "C16": [GPTQ_REFUSED + "test_what_can_not_be_read_is_refused"],
    "C17": [GPTQ_REFUSED + "test_what_can_not_be_read_is_refused"],
    "C18": [
        FAULTS + "test_a_file_of_another_program_s_format",
        GPTQ_REFUSED + "test_what_can_not_be_read_is_refused",
    ],
    "C19": [GPTQ_REFUSED + "test_what_can_not_be_read_is_refused"],
    "C20": [
        SHARDS + "test_shards_equal_the_whole_model",
        "model/test_gptq_layers.py::test_shards_add_up_to_the_whole",
    ],
    # batches
    "D01": [
        ENGINE + "test_greedy_equals_transformers",
        ENGINE + "test_batch_preemption_and_sharing_change_no_token",
    ],
    "D03": [
        ENGINE + "test_greedy_equals_transformers",
        FIXTURES + "test_logits_and_greedy_equal_the_reference",
        "cli/test_gptq.py::test_the_summary_points_out_degenerate_output",
    ],
    "D04": [
        FAULTS + "test_left_to_right_and_infilled_text_are_the_recorded_ones",
        FAULTS + "test_infilling_equals_transformers",
    ],
    "D05": [FAULTS + "test_a_row_that_is_too_long_fails_alone_and_once"],
    "D06": [
        FAULTS + "test_a_row_that_is_too_long_fails_alone_and_once",
        ENGINE + "test_bad_prompts_do_not_stop_the_others",
        GENERATE + "test_bad_rows_are_listed_and_the_others_finish",
    ],
    "D08": [
        ENGINE + "test_batch_preemption_and_sharing_change_no_token",
        "gpu/test_engine.py::test_invariant_gives_a_row_the_same_bits_in_any_company",
        "gpu/test_engine.py::test_a_lone_row_equals_a_batch_within_bf16_error",
    ],
    "D11": [FAULTS + "test_each_of_n_samples_has_a_stream_of_its_own_that_can_be_drawn_alone"],
    "D12": [
        FAULTS + "test_each_of_n_samples_has_a_stream_of_its_own_that_can_be_drawn_alone",
        ENGINE + "test_order_and_repetition_change_no_token",
    ],
    "D13": [
        FAULTS + "test_a_row_that_is_too_long_fails_alone_and_once",
        FAULTS + "test_a_request_for_more_than_the_positions_ends_at_the_last_one",
        REQUESTS + "test_ids_the_model_does_not_have",
    ],
    "D14": [
        FAULTS + "test_more_positions_than_the_model_has_are_refused_with_the_reason",
        FAULTS + "test_a_request_for_more_than_the_positions_ends_at_the_last_one",
    ],
    "D15": [
        ENGINE + "test_order_and_repetition_change_no_token",
        "model/test_attention.py::test_bits_do_not_depend_on_company",
    ],
    "D16": [
        "model/test_attention.py::test_bits_do_not_depend_on_company",
        "kernels/test_paged_attention.py::test_a_row_is_attended_alone_as_in_company",
    ],
    "D17": [
        "kernels/test_paged_attention.py::test_prefill",
        SCHEDULER + "test_nothing_is_lost_or_doubled",
    ],
    "D18": [
        "kernels/test_paged_attention.py::test_decode",
        "kernels/test_paged_attention.py::test_write_kv",
    ],
    "D19": [
        "gpu/test_kernels.py::test_a_captured_decode_reads_its_lengths_anew",
        "gpu/test_engine.py::test_graphs_equal_eager_within_bf16_error",
    ],
    "D23": [
        FAULTS + "test_one_end_token_ends_its_own_row_and_is_in_no_text",
        SCHEDULER + "test_nothing_is_lost_or_doubled",
    ],
    # files
    "E01": [
        WRITER + "test_the_manifest_is_there_before_the_first_sample_ends",
        WRITER_FAULTS + "test_a_run_killed_at_any_step_resumes_to_the_same_bytes",
    ],
    "E03": [
        GENERATE + "test_output_is_in_input_order_with_a_manifest",
        "cli/test_generate_faults.py::"
        "test_an_output_that_exists_is_refused_before_anything_is_fetched",
    ],
    "E04": [
        WRITER + "test_the_manifest_counts_and_says_that_it_is_complete",
        "cli/test_generate_faults.py::test_the_manifest_holds_the_command",
    ],
    "E06": [
        WRITER + "test_whatever_an_earlier_run_left_a_resume_ends_with_the_same_bytes",
        WRITER + "test_any_id_and_any_text_survive",
        GENERATE + "test_resume_ends_with_the_same_bytes",
    ],
    "E07": [
        PROMPTS + "test_rows_are_split_on_line_feeds_alone",
        WRITER + "test_fragile_text_is_escaped_and_optional_fields_follow",
    ],
    "E08": [PROMPTS + "test_bom_crlf_blank_lines_and_no_final_line_end"],
    "E09": [
        PROMPTS + "test_a_bad_row_fails_alone_and_says_why",
        GENERATE + "test_strict_stops_before_the_model_loads",
    ],
    "E10": [
        PROMPTS + "test_every_bad_line_is_reported_under_its_id",
        PROMPTS + "test_a_row_that_is_wrong_only_with_the_flags",
        GENERATE + "test_a_run_of_bad_rows_only_loads_no_model",
    ],
    "E11": [
        WRITER + "test_the_batch_form_answers_in_kind",
        GENERATE + "test_bad_rows_are_listed_and_the_others_finish",
        "cli/test_report.py::test_failed_rows_and_batch_answers_count",
    ],
    "E12": [
        EVAL + "test_a_subset_is_scored_and_labelled",
        EVAL + "test_some_problems_of_a_file_are_scored",
        SCORING + "test_summary_counts_classes_and_leaves_out_large_k",
    ],
    "E14": [
        FAULTS + "test_prompts_that_differ_in_trailing_space_are_two_rows",
        PROMPTS + "test_repeated_ids_fail_the_later_row_and_name_the_first",
    ],
    # evaluation
    "F01": [
        STOPS + "test_stops_are_literal_and_none_is_fine",
        FAULTS + "test_text_that_may_begin_a_stop_is_kept_where_the_row_ends",
    ],
    "F02": [STOPS + "test_stops_are_literal_and_none_is_fine"],
    "F03": [
        FAULTS + "test_one_end_token_ends_its_own_row_and_is_in_no_text",
        STOPS + "test_a_token_that_runs_past_the_stop_and_a_stop_across_tokens",
    ],
    "F04": [
        FAULTS + "test_default_stops_begin_at_column_0",
        "cli/test_eval_options.py::test_the_preset_is_printed",
    ],
    "F06": [
        TASKS + "test_infilling_has_no_stops_and_its_kind_in_the_name",
        TASKS + "test_mbpp_is_shown_as_incoder_was",
        "cli/test_eval_options.py::test_the_preset_is_printed",
    ],
    "F07": [
        "cli/test_eval_options.py::test_the_preset_is_printed",
        EVAL + "test_the_bundled_model_is_generated_with_and_scored",
    ],
    "F08": [TASKS + "test_humaneval_prompts_lose_trailing_space_but_programs_keep_it"],
    "F09": ["evaluation/test_files.py::test_a_repeated_prompt_is_dropped_and_counted"],
    "F11": [
        TOKENIZER + "test_every_text_comes_back",
        "evaluation/test_files.py::test_every_format_comes_back_as_the_same_programs",
    ],
    "F12": [
        EVAL_FAULTS + "test_a_program_that_can_not_be_read_says_why",
        SCORING + "test_summary_counts_classes_and_leaves_out_large_k",
    ],
    "F13": [
        SCORING + "test_self_check_failure_ends_the_run",
        "evaluation/test_execution.py::test_a_killed_worker_is_replaced_and_its_test_run_again",
    ],
    "F14": [
        "evaluation/test_execution.py::test_programs_start_alike_and_leave_nothing_behind",
        "evaluation/test_execution.py::test_closing_in_the_middle_leaves_no_process",
    ],
    "F16": [
        SCORING + "test_self_check_failure_ends_the_run",
        "evaluation/test_execution.py::test_limits_are_those_asked_for",
        EVAL + "test_a_failed_self_check_yields_no_score",
    ],
    "F18": [
        SCORING + "test_self_check_passes_and_counts",
        SCORING + "test_self_check_failure_ends_the_run",
    ],
    "F19": [
        "evaluation/test_pass_at_k.py::test_fewer_samples_than_k_is_left_out_and_not_one",
        EVAL + "test_a_pass_at_k_that_was_asked_for_is_never_silently_absent",
    ],
    "F23": [EVAL_FAULTS + "test_blank_lines_around_an_infilled_line_are_no_difference"],
    "F25": [
        FAULTS + "test_default_stops_begin_at_column_0",
        EVAL_FAULTS + "test_bodies_with_blank_lines_and_inner_functions_pass",
        EVAL_FAULTS + "test_a_program_that_can_not_be_read_says_why",
    ],
    # several GPUs
    "G01": [SHARDS + "test_shards_equal_the_whole_model"],
    "G02": [
        SHARDS + "test_shards_equal_the_whole_model",
        LAYOUTS + "test_embedding_rows_past_the_end_are_zero",
        "kernels/test_sampling.py::test_few_allowed_ids_and_wide_filters",
    ],
    "G03": [SHARDS + "test_shards_equal_the_whole_model"],
    "G04": [SHARDS + "test_key_value_heads_are_cut_where_there_are_many"],
    "G05": [
        SHARDS + "test_a_run_on_shards_and_groups",
        "kernels/test_random.py::test_noise_does_not_depend_on_company",
    ],
    "G06": [
        FAILURES + "test_a_fault_on_one_rank_ends_all",
        FAILURES + "test_a_shard_is_killed_in_a_step",
    ],
    "G10": [GROUPS + "test_groups_write_what_one_process_writes"],
    "G11": [GROUPS + "test_shards_compose_with_groups"],
    "G13": [
        GROUPS + "test_groups_write_what_one_process_writes",
        GROUPS + "test_openai_batches_keep_rows_together",
    ],
    "G15": [
        FAILURES + "test_the_first_all_reduce_hangs",
        FAILURES + "test_a_rank_that_never_comes",
    ],
    # speed
    "H01": [
        "cli/test_bench.py::test_every_combination_of_sizes_is_a_row",
        "gpu/test_engine.py::test_graphs_equal_eager_within_bf16_error",
    ],
    "H02": [
        SCHEDULER + "test_all_rows_are_filled_before_decoding_goes_on",
        "cli/test_bench.py::test_all_rows_of_a_batch_run_together",
    ],
    "H03": [
        SCHEDULER + "test_a_prompt_is_prefilled_once_for_all_its_samples_and_twins",
        ENGINE + "test_identical_prompts_are_prefilled_once",
    ],
    "H04": [
        "engine/test_prefix_order.py::test_headers_far_apart_are_computed_once_a_window",
        "engine/test_prefix_order.py::test_families_stand_together_at_every_depth",
        "engine/test_prefix_order.py::test_output_order_and_bytes_are_those_of_the_input",
        "engine/test_prefix_order.py::test_no_more_is_drawn_than_a_window",
    ],
    "H05": [
        SCHEDULER + "test_common_prefixes_share_whole_blocks",
        "engine/test_prefix_order.py::test_headers_far_apart_are_computed_once_a_window",
        "engine/test_prefix_order.py::test_what_shares_nothing_keeps_its_order",
    ],
    "H06": [
        REQUESTS + "test_many_rows_stream_in_order_with_failures_in_their_place",
        PROMPTS + "test_memory_holds_no_rows",
        "engine/test_prefix_order.py::test_the_first_launch_waits_for_what_it_can_use",
        "cli/test_progress.py::test_plain_lines_come_every_few_seconds",
    ],
    "H12": [GENERATE + "TestOptions::test_stops", ENGINE + "test_stop_strings_cut_the_text"],
    "H15": ["cli/test_bench.py::test_the_bundled_model_is_measured_beside_the_limit"],
}

NOT_ANSWERED: dict[str, str] = {
    "H07": "Adapters are out of scope: a merged checkpoint is an ordinary one.",
    "H09": "There is no speculation.",
    "H10": "There is no speculation.",
}


@cache
def names_in(file: str) -> set[str]:
    """test_x and TestY::test_z of a file."""
    found = set()
    for node in ast.parse((TESTS / file).read_text(encoding="utf-8")).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        lead = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {lead + m.name for m in members if isinstance(m, ast.FunctionDef)}
    return found


@pytest.mark.parametrize("case", ANSWERED)
def test_the_tests_that_answer_a_report_exist(case: str) -> None:
    assert ANSWERED[case]
    for node in ANSWERED[case]:
        file, _, name = node.partition("::")
        assert name.rpartition("::")[2].startswith("test_"), node
        assert name in names_in(file), node


def test_a_test_that_does_not_exist_is_seen() -> None:
    assert "test_a_test_that_does_not_exist_is_seen" in names_in("test_cases.py")
    assert "test_nothing" not in names_in("test_cases.py")


@pytest.mark.skipif(not REPORTS.is_file(), reason="the list of reports is not beside this clone")
def test_every_report_is_answered() -> None:
    listed = re.findall(r"^\| ([A-H]\d\d) \|", REPORTS.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(listed) == len(set(listed)) == 101
    assert not ANSWERED.keys() & NOT_ANSWERED.keys()
    assert sorted(listed) == sorted([*ANSWERED, *NOT_ANSWERED])
