"""The reason "quantised target": the draft was trained on the target's full weights."""

from ...checkpoints.load import load
from ...errors import SpecjaxError
from ...models.quantised_weights import scheme_of
from ...parallel import mesh_of
from .distributions import compare_places
from .measurements import Evidence, Reason, mean, rises, tokens_of

_TEXTS = 4
"""The texts that are read once more with full weights."""


def quantised_target(evidence: Evidence) -> Reason | None:
    """The draft is accepted more on the same texts if the target has its full weights.

    A head reads the target's hidden states, which quantised weights shift. The full weights are
    loaded by the target's name; a checkpoint that has none gets no test.
    """
    target = evidence.generator.target
    if evidence.draft is None or scheme_of(target.model) is None:
        return None
    try:
        full = load(target.name, mesh=mesh_of(target.model)).model
    except SpecjaxError:
        return None
    if scheme_of(full) is not None:
        return None
    before, after = (
        [compare_places(model, evidence.draft, tokens_of(text), 1, temperature=1.0) for text in evidence.texts[:_TEXTS]]
        for model in (target.model, full)
    )
    if not rises(before, after):
        return None
    acceptance = mean(before, "overlap")
    full_acceptance = mean(after, "overlap")
    text = (
        f"the draft was trained on full weights: it is accepted with {acceptance:.2f} by the quantised target and with "
        f"{full_acceptance:.2f} by the full one; use a form of more bits, or train the draft on the quantised target"
    )
    return Reason("quantised target", text, {"acceptance": acceptance, "acceptance_of_full_weights": full_acceptance})
