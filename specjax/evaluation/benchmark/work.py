"""The work of a method's round: the operations of its products, and the bytes that they read."""

from ...checkpoints.load import LanguageModel
from ...generate import Generator
from ...parallel import make_mesh
from ...planning.products import Work
from ...planning.program import abstract, products_of


def work_of_round(generator: Generator, capacity: int) -> Work:
    """The least work of a round at batch 1, on one device, with caches that are full.

    It follows from the traced program, see ``planning.products``. Caches count in the type of the
    weights.

    Args:
      capacity: positions of the caches.
    """
    target = generator.target
    drafts = tuple(draft.config for draft in generator.drafts if isinstance(draft, LanguageModel))
    dtype = target.model.embed[...].dtype
    return products_of(abstract(target.config, generator.drafter, drafts, make_mesh(), 1, capacity, dtype))
