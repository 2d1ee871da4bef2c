"""The drafts that a user gives: loaded, checked against the method, and placed on devices."""

import dataclasses
import warnings
from collections.abc import Callable, Sequence

import jax

from ..checkpoints.heads import choose_head, load_drafter
from ..checkpoints.load import LanguageModel
from ..drafters import check_drafts, make_drafter, needs_of, own_options
from ..drafters.auto.resting import can_rest, check_resting
from ..drafters.parts.draft_ahead import drafts_ahead
from ..errors import RequestError, SpecjaxWarning
from ..heads.base import Head
from ..loop.drafter import Drafter, Models, Nothing, TargetCopy, TrainedHead
from ..models.offload import is_streamed
from ..parallel import are_apart, mesh_of, place, several_hosts
from ..requests.shared_vocabulary import translate_draft
from .draft_devices import ApartSession
from .session import Log, Session

Draft = LanguageModel | Head

_MANY_NODES = 16
"""A CPU scores trees of more nodes in the time of several plain rounds."""


def as_list(draft) -> tuple:
    """The drafts that a user gave as a tuple: None, one draft, or a list of them."""
    return () if draft is None else tuple(draft) if isinstance(draft, list | tuple) else (draft,)


def load_drafts(target: LanguageModel, draft) -> tuple[Draft, ...]:
    """The drafts that a user gave, see ``Generator``, on the devices of the target.

    A draft that is a name is loaded in the target's dtype. If a loaded draft is not on the target's
    mesh, each device of the mesh gets all its weights. A draft stays on a mesh of devices that the
    target does not use.
    """
    mesh = mesh_of(target.model)

    def on_mesh(one: Draft) -> Draft:
        module = module_of(one)
        if mesh is None or mesh_of(module) == mesh or are_apart(module, target.model):
            return one
        return with_module(one, place(module, mesh, rows=False))

    return tuple(
        on_mesh(one) if isinstance(one, LanguageModel | Head) else load_drafter(one, target) for one in as_list(draft)
    )


def module_of(draft: Draft):
    """The weights of a draft model or of a head."""
    return draft.module if isinstance(draft, Head) else draft.model


def with_module(draft: Draft, module) -> Draft:
    """The draft with other weights."""
    return dataclasses.replace(draft, **{"module" if isinstance(draft, Head) else "model": module})


def warn_of_short_drafts(drafts: Sequence[Draft], longest: int) -> None:
    """Warns, once for each draft model, where a text may exceed the model's own context.

    ``longest``: the most tokens of a text.
    """
    for draft in drafts:
        if isinstance(draft, LanguageModel) and draft.config.encoder is None and longest > draft.config.context:
            message = (
                f"draft {draft.name!r} knows {draft.config.context} positions; beyond them few drafts are accepted"
            )
            warnings.warn(message, SpecjaxWarning, stacklevel=4)


def suits_auto(target: LanguageModel, drafts: Sequence[Draft]) -> bool:
    """Whether method auto is the default for these models.

    It needs one host, and at most one draft that may rest.
    """
    if several_hosts() or is_streamed(target.model) or len(drafts) > 1:
        return False
    return not any(
        are_apart(module_of(draft), target.model) or (isinstance(draft, Head) and not can_rest(draft.config))
        for draft in drafts
    )


def choose_drafts(
    target: LanguageModel, method: str | Sequence[str], draft, drafting: dict
) -> tuple[Drafter, tuple[Draft, ...], object]:
    """The drafter of a method, the drafts that it uses, and their modules for the target's tokens.

    ``drafting`` has options of the drafter. Raises RequestError for drafts that the method does not
    take.
    """
    needs = needs_of(method)
    entries = as_list(draft)
    name = name_of(method)
    if entries and isinstance(needs, Nothing | TargetCopy):
        raise RequestError(f"method {name!r} takes no draft; leave it out or use method 'draft_model'")
    check_drafts(method, len(entries))
    if isinstance(needs, TrainedHead):
        target.config.refuse_encoder(f"method {name!r}")
        head = choose_head(target, load_drafts(target, entries[:1]), needs.kind, name)
        drafter = make_drafter(method, head=head.config, **drafting)
        _warn_of_large_trees(drafter, name, drafting)
        return drafter, (head,), head.module
    drafter = make_drafter(method, **drafting)
    if not isinstance(needs, Models):
        return drafter, (), target.model if isinstance(needs, TargetCopy) else None
    drafts = load_drafts(target, entries[: needs.most])
    models = []
    for one in drafts:
        if isinstance(one, Head) and needs.heads:
            target.config.refuse_encoder("a trained head")
            check_resting(one.config, one.name)
            drafter = dataclasses.replace(drafter, head=one.config)  # type: ignore[call-arg]  # see ``Models.heads``
        elif isinstance(one, Head):
            raise RequestError(
                f"draft {one.name!r} is a head of kind {one.config.kind!r}; method {name!r} needs a language model"
            )
        models.append(one.module if isinstance(one, Head) else translate_draft(one, target))
    return drafter, drafts, models[0] if needs.is_one else tuple(models)


def _warn_of_large_trees(drafter: Drafter, method: str, drafting: dict) -> None:
    """Warns on a CPU where the user gave no sizes and a method's default tree is large.

    The defaults are the papers', which measured on GPUs. A CPU takes time for each node.
    """
    nodes = getattr(drafter, "tree_nodes", 0)
    sizes = {"tree_nodes", "tree", "num_speculative_tokens"}
    if jax.default_backend() == "cpu" and nodes > _MANY_NODES and not sizes & drafting.keys():
        mend = "num_speculative_tokens=3" if "num_speculative_tokens" in own_options(method) else "tree_nodes=8"
        message = f"method {method!r} drafts trees of {nodes} nodes, which a CPU scores slowly; {mend} is faster here"
        warnings.warn(message, SpecjaxWarning, stacklevel=4)


def name_of(method: str | Sequence[str]) -> str:
    """The name of a method, or the names of several, as the command line takes them."""
    return method if isinstance(method, str) else ",".join(method)


def make_session(
    target: LanguageModel,
    drafter: Drafter,
    drafts: Sequence[Draft],
    parameters,
    *,
    name: str,
    rule: Callable,
    capacity: int | None,
    log: Log | None,
) -> Session:
    """The session for the devices of the drafts. ``name`` is the method's.

    Raises RequestError for a method that cannot draft on devices of its own.
    """
    modules = [module_of(draft) for draft in drafts]
    apart = any(are_apart(module, target.model) for module in modules)
    if apart:
        _check_apart(target, drafter, name, modules)
    elif drafts_ahead(drafter):
        raise RequestError(
            "draft_ahead drafts while the target verifies, on devices of the draft's own; "
            "give --draft-mesh, load the draft with another mesh, or leave draft_ahead out"
        )
    if drafter.reads_target and is_streamed(target.model):
        raise RequestError(
            f"method {name!r} drafts with the target's layers, which offload keeps in the host's memory; use "
            "a draft model, a trained head, or a method that drafts without a model"
        )
    kind = ApartSession if apart else Session
    return kind(target, drafter, parameters, rule, capacity, log)


def _check_apart(target: LanguageModel, drafter: Drafter, name: str, modules: Sequence) -> None:
    """Raises RequestError for a draft on devices of its own that cannot be used there."""
    if isinstance(drafter.needs, Models) and not drafter.needs.apart:
        raise RequestError(
            f"method {name!r} drafts on the target's devices; load the draft there, or use method 'draft_model'"
        )
    if drafter.reads_target:
        raise RequestError(f"method {name!r} drafts with the target's cache; load the draft on the target's devices")
    target.config.refuse_encoder("a draft on devices of its own")
    if len({mesh_of(module) for module in modules}) > 1:
        raise RequestError("the drafts are on different devices; load all of them with the same mesh")
