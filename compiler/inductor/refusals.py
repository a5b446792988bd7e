"""Why a fusion is refused or left out: one code for each ground that Inductor or fusewise has.

Inductor gives its grounds as text for its log, or without a word. The tables turn both into codes,
so that reports and rules never depend on the wording of one version. Decides nothing.
"""

from __future__ import annotations

import re
from enum import StrEnum


class Refusal(StrEnum):
    """Grounds on which two groups are not fused. ``docs/refusals.md`` is written from this."""

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
    MIXED_REDUCTIONS = "mixed_reductions"
    DISABLED = "disabled"
    REGISTERS = "registers"
    SLOWER = "slower"
    CODE_GENERATOR = "code_generator"
    FUSED_ELSEWHERE = "fused_elsewhere"
    ALREADY_TOGETHER = "already_together"
    LOWER_PRIORITY = "lower_priority"
    RULE = "rule"
    OTHER = "other"


#: What each code means, in a sentence for people.
MEANINGS: dict[Refusal, str] = {
    Refusal.CYCLE: "another group would have to run both before and after the fused one",
    Refusal.ORDER: "the second side has to run before the first; asked the other way round it may "
    "be legal",
    Refusal.NO_SHARED_DATA: "the sides use a buffer in common, but no element of it in the same "
    "way, so fusing saves no access",
    Refusal.TOO_LITTLE_SHARED: "neither side needs the other, and what both read is less than "
    "`score_fusion_memory_threshold`",
    Refusal.INDEX_MISMATCH: "one side reads other elements than the other writes at that moment "
    "(shifted, transposed or reduced)",
    Refusal.INTERMEDIATE: "a third group has to run after one side and before the other",
    Refusal.LOOP_SIZES: "the loops of the sides have different extents",
    Refusal.TILING: "the sides would be tiled differently",
    Refusal.TOO_MANY_NODES: "more nodes together than `max_fusion_size`",
    Refusal.TOO_MANY_BUFFERS: "more buffers together than `max_fusion_unique_io_buffers`",
    Refusal.TOO_FAR: "the sides are far apart in the order of the program, and moving one would "
    "keep buffers alive for longer",
    Refusal.PEAK_MEMORY: "buffers that are freed between the sides would have to live together",
    Refusal.DEVICE: "the sides run on different devices",
    Refusal.STREAM: "the sides run on different streams",
    Refusal.EXTERN: "one side is a call of a library or of a kernel that takes in nothing of the "
    "kind",
    Refusal.TEMPLATE: "one side is a template (a matrix product), and the other is no prologue or "
    "epilogue that it takes",
    Refusal.FOREACH: "one side is a horizontal group (foreach, combo kernel) that the other does "
    "not match node by node",
    Refusal.SPLIT_SCAN: "a scan that is split over blocks shares no kernel with a reduction",
    Refusal.MIXED_REDUCTIONS: "one side is a group of nested or mixed-order reductions, which "
    "takes in nothing of the kind",
    Refusal.DISABLED: "a setting or a grouping of Inductor's keeps it from being fused",
    Refusal.REGISTERS: "a benchmark at compile time saw registers spilled",
    Refusal.SLOWER: "a benchmark at compile time found the fused kernel slower",
    Refusal.CODE_GENERATOR: "the code generator refused and gave no ground",
    Refusal.FUSED_ELSEWHERE: "it was legal, but a fusion of a higher score came first and took one "
    "side away",
    Refusal.ALREADY_TOGETHER: "both sides came into one group by other fusions",
    Refusal.LOWER_PRIORITY: "it was legal, but of a kind that is only tried when no other is left, "
    "and it was not asked for again",
    Refusal.RULE: "a rule of yours",
    Refusal.OTHER: "a ground that this version of fusewise does not know",
}

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
    "epilogue fusion": Refusal.TEMPLATE,
    "cutlass epilogue": Refusal.TEMPLATE,
    "Cannot fuse epilogue node": Refusal.TEMPLATE,
    "candidate consumer": Refusal.FOREACH,
    "candidate producer": Refusal.FOREACH,
    "foreach": Refusal.FOREACH,
    "Split scan": Refusal.SPLIT_SCAN,
    "fusion for buffer explicit disabled": Refusal.DISABLED,
    "grouped node": Refusal.DISABLED,
    "register spilling": Refusal.REGISTERS,
    "rule": Refusal.RULE,
}

#: Texts that begin with a name: what CUTLASS says of the epilogues of its matrix products.
_PATTERNS: tuple[tuple[re.Pattern[str], Refusal], ...] = (
    (
        re.compile(
            r" (is not a ComputedBuffer|is not a Pointwise op|has aliasing or mutation|"
            r"does not have a computed buffer name)$|'s size: .* differs from |"
            r" is a reduction which is not yet supported",
            re.DOTALL,
        ),
        Refusal.TEMPLATE,
    ),
)


def classify(text: str | None) -> Refusal:
    """Code for Inductor's text; None is a refusal without a word, which code generators make."""
    if text is None:
        return Refusal.CODE_GENERATOR
    matches = [start for start in _TEXTS if text.startswith(start)]
    if matches:
        return _TEXTS[max(matches, key=len)]
    return next((code for pattern, code in _PATTERNS if pattern.search(text)), Refusal.OTHER)
