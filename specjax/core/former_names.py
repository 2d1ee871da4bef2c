"""The former names of modules. An import of one raises an error that has its present name.

The table is for one release.
"""

import importlib.abc

_SAME_NAME = {
    "core": "cache checks conditional context logprobs recurrence sampling selection settings state stats tree "
    "truncation",
    "kernels.cpu": "processor",
    "loop": "decode drafter ending prefill",
    "text": "beam_search drafts generate machine result session",
}
"""Modules of the root that went into a folder under their own names."""

_RENAMED = {
    "checkpoints.float8": "checkpoints.packed.float8",
    "checkpoints.mxfp4": "checkpoints.packed.mxfp4",
    "checkpoints.packed_weights": "checkpoints.packed.weights",
    "checkpoints.packed_words": "checkpoints.packed.words",
    "apart": "text.draft_devices",
    "checkpoints.fields": "checkpoints.json_fields",
    "checkpoints.fit": "checkpoints.shape_check",
    "checkpoints.grow": "tools.grow.grow",
    "checkpoints.growth": "tools.grow",
    "checkpoints.stored": "checkpoints.weight_bytes",
    "costs": "text.round_times",
    "drafters.parts.ahead": "drafters.parts.draft_ahead",
    "drafters.parts.arms": "drafters.auto.arms",
    "drafters.parts.auto_state": "drafters.auto.state",
    "drafters.parts.choosing": "drafters.auto.choice",
    "drafters.parts.drawing": "drafters.parts.draft_sampling",
    "drafters.parts.gain": "drafters.parts.running_acceptance",
    "drafters.parts.grown": "drafters.parts.grower",
    "drafters.parts.one_pass": "drafters.parts.parallel_chain",
    "drafters.parts.rates": "drafters.auto.rates",
    "drafters.parts.resting": "drafters.auto.resting",
    "drafters.parts.statistics": "drafters.parts.ngram_statistics",
    "drafters.parts.store": "drafters.parts.text_store",
    "drafters.parts.times": "drafters.auto.times",
    "engine.blocks": "engine.prefix_blocks",
    "engine.hosts": "engine.multi_host",
    "engine.leaves": "engine.parameter_arrays",
    "engine.narrow": "engine.row_subset",
    "engine.outcome": "engine.request_result",
    "engine.pace": "engine.step_size",
    "engine.prefixes": "engine.prefix_cache",
    "engine.reading": "engine.prompt_reader",
    "engine.step_loop": "engine.step_thread",
    "engine.widths": "engine.batch_widths",
    "evaluation": "tools.evaluate",
    "evaluation.benchmark.asker": "tools.evaluate.benchmark.runner",
    "evaluation.benchmark.choices": "tools.evaluate.benchmark.multiple_choice",
    "evaluation.benchmark.further": "tools.evaluate.benchmark.more_measurements",
    "evaluation.benchmark.work": "tools.evaluate.benchmark.operations",
    "evaluation.faults": "tools.evaluate.planted_faults",
    "evaluation.shares": "tools.evaluate.draft_share",
    "features": "core.feature_record",
    "feedback": "text.feedback_log",
    "heads.unrolled": "heads.training_forward",
    "integrations": "tools.ray",
    "integrations.ray": "tools.ray.data",
    "integrations.ray_serve": "tools.ray.serve",
    "integrations.rows": "tools.ray.rows",
    "models.attention_kernel": "kernels.gpu.attention",
    "models.cross": "models.cross_attention",
    "models.llvm": "kernels.cpu.llvm",
    "models.past_kernel": "kernels.cpu.past_attention",
    "models.past_llvm": "kernels.cpu.past_attention_llvm",
    "models.product_kernel": "kernels.cpu.product",
    "models.product_llvm": "kernels.cpu.product_llvm",
    "models.quantised": "models.quantised_weights",
    "models.relative": "models.relative_positions",
    "models.streamed": "models.offload",
    "models.translated": "models.vocabulary_intersection",
    "planning": "tools",
    "planning.acceptance": "tools.tune.acceptance",
    "planning.auto": "tools.tune.auto",
    "planning.cost": "tools.tune.cost",
    "planning.design": "tools.design.search",
    "planning.design_report": "tools.design.report",
    "planning.devices": "tools.plan.devices",
    "planning.doctor": "tools.doctor",
    "planning.doctor.elsewhere": "tools.doctor.other_devices",
    "planning.doctor.evidence": "tools.doctor.measurements",
    "planning.doctor.expense": "tools.doctor.cost_reasons",
    "planning.doctor.experts": "tools.doctor.expert_reasons",
    "planning.doctor.head_inputs": "tools.doctor.head_reasons",
    "planning.doctor.knowledge": "tools.doctor.draft_reasons",
    "planning.doctor.places": "tools.doctor.distributions",
    "planning.doctor.replay": "tools.doctor.round_replay",
    "planning.doctor.rounds": "tools.doctor.round_time",
    "planning.doctor.vocabulary": "tools.doctor.vocabulary_reasons",
    "planning.doctor.words": "tools.doctor.report",
    "planning.draft_latency": "tools.design.draft_latency",
    "planning.head_trees": "tools.tune.head_trees",
    "planning.hlo": "tools.plan.hlo",
    "planning.launches": "tools.plan.launches",
    "planning.layer_cost": "tools.tune.layer_cost",
    "planning.layers": "tools.tune.layers",
    "planning.plan": "tools.plan.plan",
    "planning.plan_report": "tools.plan.report",
    "planning.plan_settings": "tools.plan.settings",
    "planning.products": "tools.evaluate.products",
    "planning.program": "tools.plan.program",
    "planning.rounds": "tools.plan.round_time",
    "planning.timers": "tools.tune.timers",
    "planning.traffic": "tools.plan.traffic",
    "planning.tree_search": "tools.tune.tree_search",
    "planning.tune": "tools.tune.tree",
    "planning.tune_lookahead": "tools.tune.lookahead",
    "planning.usual_heads": "tools.plan.usual_heads",
    "records": "text.table_files",
    "rounds": "core.round_record",
    "rules.verdict": "core.verdict",
    "training.online.recorded": "training.online.feature_windows",
    "training.pruning": "tools.prune",
    "verify": "rules.acceptance",
}
"""Modules and folders with another name, or of another folder than the root."""

NAMES = {name: f"{folder}.{name}" for folder, names in _SAME_NAME.items() for name in names.split()} | _RENAMED
"""The present name of each former name, both below ``specjax``."""


def present_name(former: str) -> str | None:
    """The present full name of a module or of a folder with this full name.

    It is None for a module that never moved.
    """
    parts = former.split(".")[1:]
    for size in range(len(parts), 0, -1):
        if (name := ".".join(parts[:size])) in NAMES:
            return ".".join(["specjax", NAMES[name], *parts[size:]])
    return None


class Finder(importlib.abc.MetaPathFinder):
    """Refuses imports of former names.

    It comes last, so it sees only names that nothing else finds.
    """

    def find_spec(self, fullname, path=None, target=None):
        """Raises ImportError for a former name."""
        if fullname.startswith("specjax.") and (present := present_name(fullname)):
            # Python imports a folder before its modules, so this error is the only one for them.
            is_folder = any(f"specjax.{name}".startswith(f"{fullname}.") for name in NAMES)
            others = ", and specjax.core.former_names has the names of its modules" if is_folder else ""
            raise ImportError(f"{fullname} is {present} now{others}; import that", name=fullname)
        return None
