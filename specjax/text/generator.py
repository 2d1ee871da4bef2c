"""Text in, text and statistics out: a generator, which decodes with one method."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack, overload

import jax
from flax import nnx

from ..checkpoints.load import LanguageModel, load
from ..core.checks import whole
from ..core.sampling import check_processors
from ..drafters import check_options, default_method, own_options
from ..errors import RequestError
from ..heads.base import Head
from ..loop.drafter import Drafter, Models, TargetCopy
from ..requests.batch import Batch, build_batch
from ..requests.chat import end_of_turn_ids, is_conversation, render_chat
from ..requests.options import Options
from ..requests.prompts import encode_prompts, is_single
from ..rules.acceptance import resolve
from .drafts import (
    choose_drafts,
    load_drafts,
    make_session,
    module_of,
    name_of,
    suits_auto,
    warn_of_short_drafts,
    with_module,
)
from .feedback_log import MEGABYTES, open_log
from .keywords import DraftingKeywords, RequestKeywords, RowKeywords
from .result import Result, results_of, settled_text
from .round_times import find_costs
from .session import Decoding

Prompt = str | Sequence[int]


class Generator:
    """Decodes prompts with one method.

    A generator keeps its compiled programs, and for some methods the texts of earlier calls.

    Args:
      target: the model whose output is wanted, or its name.
      method: one of ``drafters.METHODS``, or a list of methods that draft chains, between which
        each row switches. The default is "auto" for no draft, one draft model, or a head of one
        module that drafts token by token. It is "merged" for several drafts. With options of
        drafting, another rule, a feedback log, several hosts, or a target that offloads layers, it
        is "draft_model" for one model, "none" without a draft, and the head's own method for a
        head.
      draft: the draft of a method that needs a second model or a head: a name, a directory, a hub
        id, a loaded model, or a list of them. A method with one draft uses the first of a list. A
        draft model may have another vocabulary, see ``requests.shared_vocabulary``. If a method
        needs a head and none is given, the embedded target's own head is used. A draft that was
        loaded with a mesh of other devices than the target's drafts there, see
        ``text.draft_devices``.
      rule: the acceptance rule, see ``rules.acceptance``; "auto" is the best lossless rule.
      capacity: positions of the cache; by default the smallest power of two that a call needs.
      processors: pure functions ``(logits [B, N, V], Context) -> logits``. They are compiled into
        the pipeline, after all built-in options and before temperature. ``context.Context`` lists
        the history that they may read.
      feedback_log: a directory to which the rounds of all calls are written, for methods whose
        chains a draft model draws. It holds the texts of prompts and answers. By default nothing is
        kept.
      feedback_log_mb: the size of that log; the oldest files are deleted beyond it.
      drafting: options of the method, such as num_speculative_tokens, prompt_lookup_max or tree;
        see its class in ``drafters``.

    Raises RequestError, before anything is compiled, for options that do not fit or belong to
    another method.
    """

    def __init__(
        self,
        target: LanguageModel | str,
        method: str | Sequence[str] | None = None,
        draft=None,
        *,
        rule: str = "auto",
        capacity: int | None = None,
        processors: Sequence[Callable] = (),
        feedback_log: str | Path | None = None,
        feedback_log_mb: int = MEGABYTES,
        **drafting: Unpack[DraftingKeywords],
    ):
        self.target = target = as_model(target)
        if method is None:
            draft = load_drafts(target, draft)
            plain = rule == "auto" and feedback_log is None and set(drafting) <= set(own_options("auto"))
            method = "auto" if plain and suits_auto(target, draft) else default_method(draft)
        check_options(method, drafting)
        self.method = name_of(method)
        drafter, self.drafts, module = choose_drafts(target, method, draft, dict(drafting))
        found: dict[str, Any] = {}
        self.costs_file = None
        if drafter.chooser and drafter.chooser.has_arms:
            drafter, found, self.costs_file = find_costs(drafter.chooser, target, self.drafts)
        if not drafter.with_encoder:
            target.config.refuse_encoder(f"method {self.method!r}")
        drafter.check(target.config)
        if drafter.depth >= target.config.context:
            raise RequestError(
                f"method {self.method!r} drafts {drafter.depth} tokens at once, and the model's context is"
                f" {target.config.context}; draft fewer"
            )
        capacity = None if capacity is None else whole("capacity", capacity)
        self.rule_name = rule
        self.processors = check_processors(tuple(processors), target.config.vocab_size)
        parameters = drafter.parameters(module, target.config.vocab_size)
        parameters = parameters.replace(**found) if found else parameters
        log = None
        if feedback_log is not None:
            log = open_log(feedback_log, self.method, drafter, target, self.drafts, feedback_log_mb)
        options: dict[str, Any] = dict(rule=resolve(rule, drafter.drawn), capacity=capacity, log=log)
        self.session = make_session(target, drafter, self.drafts, parameters, name=self.method, **options)

    @overload
    def __call__(
        self, prompts: str, *, messages: None = None, n: Literal[1] = 1, **options: Unpack[RowKeywords]
    ) -> Result: ...
    @overload
    def __call__(
        self, prompts: Sequence[Prompt], *, messages: None = None, **options: Unpack[RequestKeywords]
    ) -> list[Result]: ...
    @overload
    def __call__(
        self, prompts: Sequence[int], *, messages: None = None, n: Literal[1] = 1, **options: Unpack[RowKeywords]
    ) -> Result: ...
    @overload
    def __call__(
        self, prompts: None = None, *, messages: Sequence, **options: Unpack[RequestKeywords]
    ) -> Result | list[Result]: ...
    def __call__(self, prompts=None, *, messages=None, **options: Unpack[RequestKeywords]) -> Result | list[Result]:
        """Continues a prompt (a string, or token ids), or a list of prompts as one ragged batch.

        Args:
          messages: a conversation instead of prompts, [{"role": "user", "content": "..."}, ...], or
            a list of conversations. The tokenizer's chat template turns it into a prompt, and the
            template's end-of-turn token ends the answer.
          options: the fields of ``requests.options.Options``: max_new_tokens, temperature, seed,
            stop, regex and others.

        Returns a Result for one prompt. For a list of prompts, or several samples (``n``), it
        returns a list of Results, in which the samples of a prompt follow one another.

        Raises RequestError for bad input before any compilation, and NumericsError if the model
        produces NaN.
        """
        decoding = self.start(prompts, messages=messages, **options)
        single = is_single(prompts) if messages is None else is_conversation(messages)
        self.session.advance(decoding)
        results = self._results(decoding)
        self.remember(results)
        return results[0] if single and len(results) == 1 else results

    def stream(
        self, prompt: Prompt | None = None, *, messages=None, rounds: int = 4, **options: Unpack[RequestKeywords]
    ) -> Iterator[str]:
        """Yields the new text of one prompt piece by piece, after every ``rounds`` rounds.

        Yielded text is final. The return value of the iterator is the Result. Arguments and errors
        are those of a call.
        """
        shown = 0
        for result in self.stream_results(prompt, messages=messages, rounds=rounds, **options):
            if len(result.text) > shown:
                yield result.text[shown:]
                shown = len(result.text)
        return result

    def stream_results(
        self, prompt: Prompt | None = None, *, messages=None, rounds: int = 4, **options: Unpack[RequestKeywords]
    ) -> Iterator[Result]:
        """Yields the growing Result of one prompt after every ``rounds`` rounds.

        The last Result is complete. Each text begins with the text of the Result before. An
        incomplete character is held back until its last byte, and the possible beginning of a stop
        string until the string is complete or ruled out.
        """
        single = is_single(prompt) if messages is None else is_conversation(messages)
        if not single or Options.of(options).n != 1:
            raise RequestError("a stream takes one prompt and one sample; call the generator for more")
        whole("rounds", rounds)
        decoding = self.start(prompt, messages=messages, **options)
        text = ""
        while True:
            self.session.advance(decoding, rounds)
            (result,) = self._results(decoding)
            if decoding.is_done:
                break
            settled = settled_text(result.text, result.token_ids, self.target, decoding.batch.stop_strings[0])
            text = settled if settled.startswith(text) else text
            yield dataclasses.replace(result, text=text)
        self.remember([result])
        yield result

    def update(self, parameters=None, *, draft=None) -> None:
        """Replaces the weights of the target, of the draft, or of both. Nothing is compiled anew.

        Args:
          parameters: a model of the target's structure; or, for a Flax module, its state
            (``nnx.state``).
          draft: the same for the draft, of a method with one draft that has the target's
            vocabulary.

        Raises RequestError if structure, shapes or dtypes differ.
        """
        if parameters is not None:
            self._update_target(parameters)
        if draft is not None:
            self._update_draft(draft)

    def _update_target(self, parameters) -> None:
        model = parameters
        if isinstance(parameters, nnx.State):
            model = nnx.merge(nnx.graphdef(self.target.model), parameters)
        target = dataclasses.replace(self.target, model=model, generators={})
        self.session.update(target)
        self.target = target
        if isinstance(self.drafter.needs, TargetCopy):
            self.session.parameters = self.drafter.parameters(model, target.config.vocab_size)
        if self.session.log is not None:
            self.session.log = self.session.log.of_target(target)

    def _update_draft(self, parameters) -> None:
        if len(self.drafts) != 1:
            raise RequestError(f"method {self.method!r} has {len(self.drafts)} drafts, and update replaces one")
        (draft,) = self.drafts
        if isinstance(parameters, nnx.State):
            parameters = nnx.merge(nnx.graphdef(module_of(draft)), parameters)
        updated = with_module(draft, parameters)
        needs = self.drafter.needs
        module = (parameters,) if isinstance(needs, Models) and not needs.is_one else parameters
        draft_parameters = self.drafter.parameters(module, self.target.config.vocab_size)
        if self.drafter.chooser:
            draft_parameters = self.drafter.chooser.with_times_of(draft_parameters, self.session.parameters)
        self.session.update_draft(draft_parameters)
        self.drafts = (updated,)
        if self.session.log is not None:
            self.session.log = self.session.log.of_draft(updated)

    @property
    def drafter(self) -> Drafter:
        """The drafting method."""
        return self.session.drafter

    @property
    def draft(self) -> LanguageModel | Head | None:
        """The first of ``drafts``, or None."""
        return next(iter(self.drafts), None)

    def start(
        self, prompts: Prompt | Sequence[Prompt] | None = None, *, messages=None, **options: Unpack[RequestKeywords]
    ) -> Decoding:
        """Reads a prompt or a list of prompts, see ``__call__``.

        ``session.advance`` then decodes the returned batch.
        """
        return self.session.start(self.read_options(prompts, messages=messages, **options))

    def read_options(
        self, prompts: Prompt | Sequence[Prompt] | None = None, *, messages=None, **options: Unpack[RequestKeywords]
    ) -> Batch:
        """The token ids of the prompts, and the options of their rows, see ``__call__``."""
        tokenizer = self.target.tokenizer
        ends = ()
        if (prompts is None) == (messages is None):
            raise RequestError("give prompts or messages, one of the two")
        if messages is not None:
            conversations = [messages] if is_conversation(messages) else messages
            prompts = [render_chat(tokenizer, each) for each in conversations]
            ends = end_of_turn_ids(tokenizer)
        ids = encode_prompts(prompts, tokenizer, self.target.config)
        ids = [[*source, *self.target.config.decoder_prompt] for source in ids]
        batch = build_batch(Options.of(options), ids, self.target, self.processors, ends)
        warn_of_short_drafts(self.drafts, int(jax.device_get(batch.requests.limit).max()))
        if self.rule_name == "argmax_walk" and (jax.device_get(batch.requests.sampling.temperature) > 0).any():
            raise RequestError("rule 'argmax_walk' is greedy and not lossless at temperature above 0; use rule='auto'")
        return batch

    def _results(self, decoding: Decoding) -> list[Result]:
        return results_of(decoding, self.target, self.rule_name, self.session)

    def remember(self, results: list[Result]) -> None:
        """Gives the texts of finished requests to a method that keeps them."""
        texts = [[*r.prompt_token_ids, *r.token_ids] for r in results]
        self.session.parameters = self.drafter.remember(self.session.parameters, texts)


def as_model(target: LanguageModel | str) -> LanguageModel:
    """The language model ``target``, loaded if it is a name."""
    return target if isinstance(target, LanguageModel) else load(target)
