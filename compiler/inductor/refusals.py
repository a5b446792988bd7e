"""Why a fusion is refused: one code for each ground that Inductor or fusewise has.

Inductor gives its grounds as text for its log. The table turns them into codes, so that reports
and rules never depend on the wording of one version.
"""

from __future__ import annotations

from enum import StrEnum


class Refusal(StrEnum):
    """Grounds on which two groups are not fused."""

    CYCLE = "cycle"
    ORDER = "order"
    NO_SHARED_DATA = "no_shared_data"
    TOO_LITTLE_SHARED = "too_little_shared"
    INDEX_MISMATCH = "index_mismatch"
    INTERMEDIATE = "intermediate"
    LOOP_SIZES = "loop_sizes"
    TILING = "tiling"
    TOO_MANY_NODES = "too_many_nodes"
    TOO_MANY_BUFFERS = "too_many_buffers"
    TOO_FAR = "too_far"
    PEAK_MEMORY = "peak_memory"
    DEVICE = "device"
    STREAM = "stream"
    EXTERN = "extern"
    TEMPLATE = "template"
    FOREACH = "foreach"
    SPLIT_SCAN = "split_scan"
    DISABLED = "disabled"
    REGISTERS = "registers"
    CODE_GENERATOR = "code_generator"
    OTHER = "other"


#: Beginnings of Inductor's texts, longest match wins.
_TEXTS: dict[str, Refusal] = {
    "will create cycle": Refusal.CYCLE,
    "node1 must go before node2": Refusal.ORDER,
    "no shared data": Refusal.NO_SHARED_DATA,
    "no shared data due to indexing mismatch": Refusal.INDEX_MISMATCH,
    "score_fusion_memory_threshold": Refusal.TOO_LITTLE_SHARED,
    "memory deps did not match": Refusal.INDEX_MISMATCH,
    "intermediate nodes": Refusal.INTERMEDIATE,
    "numel/rnumel mismatch": Refusal.LOOP_SIZES,
    "nodes numel": Refusal.LOOP_SIZES,
    "tiling mismatch": Refusal.TILING,
    "invalid tiling": Refusal.TILING,
    "invalid loop order": Refusal.TILING,
    "exceeds max fusion": Refusal.TOO_MANY_NODES,
    "fusion_prevent_too_many_reads_and_writes": Refusal.TOO_MANY_BUFFERS,
    "Nodes are too far away": Refusal.TOO_FAR,
    "Fusion will increase peak memory": Refusal.PEAK_MEMORY,
    "device mismatch": Refusal.DEVICE,
    "node1 is nop": Refusal.EXTERN,
    "node1 is extern": Refusal.EXTERN,
    "node2 is extern": Refusal.EXTERN,
    "node1's triton kernel": Refusal.EXTERN,
    "epilogue reads": Refusal.EXTERN,
    "node1 and node2 uses different buf layouts": Refusal.EXTERN,
    "prologue fusion": Refusal.TEMPLATE,
    "template": Refusal.TEMPLATE,
    "multi-output template": Refusal.TEMPLATE,
    "candidate consumer": Refusal.FOREACH,
    "candidate producer": Refusal.FOREACH,
    "foreach": Refusal.FOREACH,
    "Split scan": Refusal.SPLIT_SCAN,
    "fusion for buffer explicit disabled": Refusal.DISABLED,
    "grouped node": Refusal.DISABLED,
    "register spilling": Refusal.REGISTERS,
}


def classify(text: str | None) -> Refusal:
    """Code for Inductor's text; None is a refusal without a word, which code generators make."""
    if text is None:
        return Refusal.CODE_GENERATOR
    matches = [start for start in _TEXTS if text.startswith(start)]
    return _TEXTS[max(matches, key=len)] if matches else Refusal.OTHER
