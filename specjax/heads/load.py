"""Names to drafters: language models and trained heads, by what their configuration and tensors say they are."""

from ..errors import RequestError
from ..models.hub import LanguageModel, load
from .base import Head


def load_drafter(name, target: LanguageModel) -> LanguageModel | Head:
    """What is called ``name``, in the target's dtype: a language model, or a head, checked against the target."""
    return load(name, dtype=str(target.model.embed[...].dtype))


def chosen(target: LanguageModel, drafts: tuple, kinds: tuple[str, ...], method: str) -> Head:
    """The first head of these kinds among the drafts. Raises RequestError where there is none."""
    heads = [draft for draft in drafts if isinstance(draft, Head) and draft.config.kind in kinds]
    if not heads:
        raise RequestError(f"method {method!r} drafts with a trained head of kind {' or '.join(kinds)}; name one with draft, or --draft")
    return heads[0]
