"""What `santagen inspect` found, as lines of text: a label, and what there is to say. Text only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from santagen.cli.labelled import Text, labelled, size

UNKNOWN = "can't be told"


def table(report: dict[str, Any]) -> list[str]:
    """The lines of a report as cli.inspect builds it."""
    return labelled(_rows(report))


def _rows(report: dict[str, Any]) -> Iterator[tuple[str, Text]]:
    revision = f" at {report['revision']}" if report["revision"] else ""
    yield "model", f"{report['model']}{revision}"
    yield "architecture", _architecture(report["architecture"])
    yield "files", _files(report["files"])
    yield "layout", _layout(report["layout"])
    yield "quantised", _quantization(report["quantization"])
    if report["parameters"] is not None:
        count = report["parameters"]
        yield "parameters", f"{count['total']:,} ({count['embeddings']:,} of them embeddings)"
        yield "weights", [f"{size(n)} {how}" for how, n in report["weights"]["bytes"].items()]
        yield "KV cache", _cache(report["kv_cache"])
        if report["memory"] is not None:
            yield "fits", _memory(report["memory"], report["kv_cache"]["max_model_len"])
    yield "tokenizer", _tokenizer(report["tokenizer"])
    yield "runs", "yes" if report["runs"] else "no, see below"


def _architecture(found: dict[str, Any] | None) -> Text:
    if found is None:
        return UNKNOWN
    heads = "1 head" if found["n_kv_head"] == 1 else f"{found['n_kv_head']} heads"
    names = ", ".join(found["architectures"]) or "no architecture named"
    return [
        f"{found['model_type']} ({names})",
        f"{found['n_layer']} layers of {found['n_embd']:,}, inner {found['n_inner']:,}, "
        f"{found['activation']}",
        f"{found['n_head']} query heads of {found['head_dim']}, {heads} of keys and values",
        f"{found['n_positions']:,} positions, {found['vocab_size']:,} ids, "
        f"dtype {found['torch_dtype'] or 'not said'}",
    ]


def _files(found: dict[str, Any]) -> list[str]:
    names = [entry["name"] for entry in found["list"]]
    shown = names if len(names) < 3 else [names[0], "...", names[-1]]
    named = f": {', '.join(shown)}" if shown else ""
    lines = [f"{found['kind']}, {size(found['bytes'])}{named}"]
    lines += [
        f"{dtype}: {entry['tensors']:,} tensors, {size(entry['bytes'])}"
        for dtype, entry in found["dtypes"].items()
    ]
    if found["skipped_buffers"]:
        lines.append(f"{found['skipped_buffers']:,} of them are buffers, which are skipped")
    return lines


def _layout(found: dict[str, Any] | None) -> Text:
    if found is None:
        return UNKNOWN
    return [
        found["summary"],
        found["orientation_why"],
        f"head {found['head']} (stored: {found['head_stored']}), names {found['names']}",
    ]


def _quantization(found: dict[str, Any] | None) -> Text:
    if found is None:
        return "no"
    if found.get("refused"):
        return "in a way that is refused, see below"
    group = "one group" if found["group_size"] == -1 else f"groups of {found['group_size']}"
    kind = "symmetric" if found["sym"] else "asymmetric"
    lines = [f"GPTQ, {found['bits']} bits, {group}, {kind} (from {found['source']})"]
    if "format" in found:
        order = ", ".join(f"{many} layers {what}" for what, many in found["g_idx"].items())
        lines += [
            f"act-order: {'yes' if found['act_order'] else 'no'} ({order})",
            f"zero points {found['format']}: {found['format_why']}",
            f"scales {found['scales_dtype']}",
        ]
    return lines


def _cache(found: dict[str, Any]) -> str:
    return (
        f"{found['bytes_per_token']:,} bytes per token as {found['dtype']}, "
        f"{size(found['bytes_per_sequence'])} for {found['max_model_len']:,} tokens"
    )


def _memory(found: dict[str, Any], length: int) -> list[str]:
    lines = [
        f"a GPU of {size(found['bytes'])}, {100 * found['utilization']:g} % of it used"
    ]
    for how, plan in found["plans"].items():
        taken = f"{size(plan['weight_bytes'])} weights, {size(plan['workspace_bytes'])} workspace"
        lines.append(
            f"{how}: {plan['sequences']:,} sequences of {length:,} tokens, "
            f"{plan['cache_tokens']:,} tokens in all ({taken}, {size(plan['cache_bytes'])} cache); "
            f"at once at most {plan['rows']:,} unless --max-num-seqs says more"
        )
    return lines


def _tokenizer(found: dict[str, Any] | None) -> Text:
    if found is None:
        return "none"
    ends = ", ".join(f"{end['id']} {end['token'] or ''}".strip() for end in found["eos"])
    lines = [f"{found['vocab_size']:,} ids, end of text {ends or 'not known'}"]
    if found["fim"] is None:
        lines.append("no FIM tokens")
    else:
        ids = ", ".join(f"{w} {n}" for w, n in found["fim_ids"].items() if n is not None)
        lines.append(f"FIM tokens spelt with {found['fim']}s ({ids})")
    if "model_rows" in found:
        lines.append(
            f"{found['rows_without_token']:,} of the model's {found['model_rows']:,} rows have no "
            f"token, {found['tokens_without_row']:,} tokens have no row"
        )
    return lines
