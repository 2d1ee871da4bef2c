"""Gives a model its drafter: looks, gathers texts, trains, tunes, proves and writes the result."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ...checkpoints.heads import load_drafter, save_head
from ...checkpoints.load import LanguageModel, save
from ...engine.engine import Engine
from ...errors import RequestError
from ...heads.base import Head
from ...requests.chat import render_chat
from ...text.boosted import Boosted
from ...text.machine import machine
from ..evaluate.suites import Question, Suite
from . import contest, report
from .budget import GATHERING, TRAINING, check_tokens, plan_steps
from .candidates import CANDIDATES
from .contest import Measured, Trial
from .journal import Journal, open_journal
from .options import BoostOptions
from .prompts import find_prompts
from .proof import HELD_OUT, prove, read_held_out
from .survey import RoundCost, survey
from .texts import Asking, Gathered, TextFiles, gather
from .tuning import choose, choose_draft_temperature

DRAFTER = "drafter"
"""The folder of the drafter in the directory of a boost."""

_COSTS = "auto.json"
_SLOTS, _FEW = 64, 16
"""The texts that are written together, and those of the end of a block."""

_TRIED = 12
_TRIED_TOKENS = 96
"""The held-out prompts by which drafters are compared, and the new tokens after each."""


def boost(
    target: LanguageModel,
    model: str,
    output: str | Path,
    options: BoostOptions | None = None,
    *,
    loading: Mapping[str, Any] = MappingProxyType({}),
    suites: Sequence[tuple[Suite, Sequence[Question]]] = (),
    say: Callable[[str], None] = lambda line: None,
    progress: Callable[[str, float], None] = lambda step, share: None,
) -> Boosted:
    """Finds, trains and proves the drafter that makes ``target`` fastest here.

    ``output`` gets ``boost.toml``, which ``text.boosted.load_boosted`` reads, the drafter in its
    published layout, a model card and ``report.html``; nothing of it for the device "plan". An
    interrupted call goes on: each finished step is recorded, and texts and trainings go on within
    their steps.

    Args:
      target: the model to make faster.
      model: its name, for ``boost.toml``.
      loading: the arguments with which it was loaded, see ``Boosted``.
      output: the directory.
      options: by default ``BoostOptions()``.
      suites: suites on which the speed is proven too, with their questions.
      say: called with a line for each result.
      progress: called with the name of a step and the share of it that is done.

    Raises RequestError for bad input, where texts or time are too few, and for a directory of
    another boost; StorageError for a full disk. Finished steps stay.
    """
    options = options or BoostOptions()
    target.config.refuse_encoder("boost")
    mend = "raise --tokens, or name a --drafter that is not trained"
    check_tokens(options.names, target.config, options.tokens, mend)
    choice = Boosted(model, "none", loading={name: value for name, value in loading.items() if value})
    settings = dataclasses.asdict(options) | {"model": model, "loading": choice.loading}
    settings["suites"] = {suite.name: len(questions) for suite, questions in suites}
    del settings["hours"], settings["device"]  # more time may be given later
    with open_journal(Path(output), settings) as journal:
        return _Work(target, choice, options, suites, journal, say, progress).run()


@dataclasses.dataclass(frozen=True)
class _Work:
    """The steps of a boost. ``plain`` is the choice of plain decoding."""

    target: LanguageModel
    plain: Boosted
    options: BoostOptions
    suites: Sequence[tuple[Suite, Sequence[Question]]]
    journal: Journal
    say: Callable[[str], None]
    progress: Callable[[str, float], None]

    def run(self) -> Boosted:
        # 1. The kinds that may pay on this device.
        forecast = self.journal.do("survey", lambda: survey(self.target, self.options.names))
        rounds = RoundCost(forecast["nodes"], forecast["ratios"])
        costs = ", ".join(f"{n}: {ratio:.2f}" for n, ratio in zip(rounds.nodes, rounds.ratios))
        self.say(f"a round in plain rounds, by the nodes that it scores: {costs}")
        for name, reason in forecast["reasons"].items():
            self.say(f"{name}: {reason}")
        if not forecast["promising"]:
            return self._write(self._plain("no kind of drafter can pay on this device"), None, {}, {})
        if self.options.device == "plan":
            self.say("the plan ends here; --device here goes on")
            return self.plain
        # 2. Texts.
        trained = [name for name in forecast["promising"] if CANDIDATES[name].is_trained]
        files = self._gather(trained)
        # 3. The contest.
        trial = self._trial(files, rounds)
        curves = self._train(trial, trained, files)
        free = [name for name in forecast["promising"] if not CANDIDATES[name].is_trained]
        curves |= {name: self._measure(trial, name) for name in free}
        measured = {name: curve[-1] for name, curve in curves.items() if curve}
        drafts = {name: self._load(trial, name) for name in trained if self._was_finished(curves, name)}
        measured = {name: one for name, one in measured.items() if name in drafts or name in free}
        # 4. The method, the shape of its drafts, and their temperature.
        tuned = self.journal.do("tuning", lambda: self._choose(drafts, measured, trial))
        best = tuned[0]
        draft = drafts.get(best["draft"])
        if best["speedup"] <= 1:
            reason = (
                f"nothing is faster than plain decoding here ({_describe(best)} is {best['speedup']:.2f} times as fast)"
            )
            return self._write(self._plain(reason), None, curves, {}, tuned)
        self.say(f"the choice: {_describe(best)}, {best['speedup']:.2f} times plain decoding on held-out prompts")
        best = self.journal.do("draft temperature", lambda: self._choose_temperature(tuned[0], draft, trial))
        # 5. The proof.
        held_out = read_held_out(files.held_out)[_TRIED:]
        suites = [(dataclasses.replace(HELD_OUT, chat=trial.chat), held_out), *self.suites]
        where = self.journal.directory / "proof"
        proof = self.journal.do("proof", lambda: self._prove(best, draft, suites, where))
        # 6. The result.
        return self._write(best, draft, curves, proof, tuned)

    def _gather(self, trained: Sequence[str]) -> TextFiles:
        """The texts: as many as trainings need, or enough to measure where nothing is trained."""
        options = self.options
        directory = self.journal.directory / "texts"
        if "texts" in self.journal.results:
            return TextFiles(directory)
        tokens = options.tokens if trained else min(options.tokens, 20_000)
        suite = [turn for _, questions in self.suites for question in questions for turn in question.turns]
        apart = Asking(held_out=_TRIED + options.questions, suite=suite, seed=options.seed)
        asking = find_prompts(self.target, options.data, tokens, apart)
        room = min(self.target.config.context, 2 * asking.longest + 256)
        engine = Engine(self.target, "none", slots=_SLOTS, widths=(_FEW,), capacity=room)
        share = None if options.hours is None else options.hours * 3600 * GATHERING

        def show(gathered: Gathered) -> None:
            self.progress("texts", min(gathered.tokens / tokens, 1))

        def goes_on() -> bool:
            return share is None or self.journal.elapsed("texts") < share

        self.say(f"the target writes texts of {tokens:,} tokens")

        def write() -> dict:
            files = gather(engine, directory, asking, tokens, show, goes_on)
            # An error keeps the step open, so that more time continues it.
            check_tokens(trained, self.target.config, files.gathered.tokens, "give more --hours, or more --data")
            return dataclasses.asdict(files.gathered)

        self.journal.do("texts", write)
        files = TextFiles(directory)
        self.say(f"texts: {files.gathered.answers:,} answers, {files.gathered.tokens:,} tokens")
        if files.gathered.in_suite:
            self.say(f"{files.gathered.in_suite} questions were left out, because a suite has them")
        return files

    def _trial(self, files: TextFiles, rounds: RoundCost) -> Trial:
        rows = [json.loads(line) for line in files.held_out.read_text().splitlines()]
        if len(rows) <= _TRIED:
            raise RequestError(
                f"{len(rows)} answers were written, and the first {_TRIED + 1} are held out; "
                "give more --hours or --tokens, or more --data, and a new directory"
            )
        chat = "messages" in rows[0]
        encode = self.target.tokenizer.encode
        prompts = [render_chat(self.target.tokenizer, r["messages"][:1]) if chat else encode(r["prompt"]) for r in rows]
        tokens = min(_TRIED_TOKENS, self.target.config.context // 4)
        return Trial(
            self.target, [str(files.training)], prompts[:_TRIED], chat, tokens, rounds,
            self.journal.directory / "candidates", self.options.seed,
        )  # fmt: skip

    def _train(self, trial: Trial, trained: Sequence[str], files: TextFiles) -> dict[str, list[Measured]]:
        """The curves of the candidates that are trained."""
        if not trained:
            return {}
        hours = self.options.hours
        seconds = None if hours is None else hours * 3600 * TRAINING
        steps = self.journal.do("steps", lambda: plan_steps(trial, trained, files.gathered.tokens, seconds))
        for name, count in steps.items():
            self.say(f"{name}: at most {count} steps of training")

        def hold() -> dict:
            curves = contest.hold_contest(trial, trained, steps.__getitem__, self.say)
            return {name: [dataclasses.asdict(one) for one in curve] for name, curve in curves.items()}

        curves = self.journal.do("training", hold)
        curves = {name: [Measured(**one) for one in curve] for name, curve in curves.items()}
        for name, curve in curves.items():
            if gain := contest.gain_of_doubling(curve):
                self.say(f"{name}: twice the training would add about {gain:.2f} tokens a round, by its curve")
        return curves

    def _measure(self, trial: Trial, name: str) -> list[Measured]:
        """The curve of a kind that needs no training: one point."""
        work = lambda: dataclasses.asdict(contest.measure(trial, CANDIDATES[name], None, 0))
        measured = Measured(**self.journal.do(f"acceptance of {name}", work))
        self.say(f"{name}: {measured.acceptance_length:.2f} tokens a round, {measured.speedup:.2f} times expected")
        return [measured]

    @staticmethod
    def _was_finished(curves: dict[str, list[Measured]], name: str) -> bool:
        """Whether the candidate was trained to the end."""
        return len(curves[name]) == max(len(curve) for curve in curves.values())

    def _load(self, trial: Trial, name: str) -> LanguageModel | Head:
        return load_drafter(str(trial.directory / name / "training"), self.target)

    def _choose(self, drafts: dict, measured: dict[str, Measured], trial: Trial) -> list[dict]:
        costs = self.journal.directory / _COSTS
        return choose(self.target, drafts, measured, trial.prompts, trial.tokens, costs)

    def _choose_temperature(self, best: dict, draft, trial: Trial) -> dict:
        return choose_draft_temperature(self.target, best, draft, trial.prompts, trial.tokens)

    def _prove(self, best: dict, draft, suites, where: Path) -> dict[str, Any]:
        show = lambda done, of: self.progress("proof", done / of)
        return prove(self.target, best, draft, suites, where, self.options.new_tokens, show)

    def _plain(self, reason: str) -> dict[str, Any]:
        self.say(f"{reason}; plain decoding stays")
        return {"method": "none", "draft": None, "options": {}, "reason": reason}

    def _write(self, best: dict, draft, curves: dict, proof: dict, tuned: Sequence[dict] = ()) -> Boosted:
        """Writes the drafter, ``boost.toml``, the model card and the report."""
        directory = self.journal.directory
        folder = directory / DRAFTER
        if draft is not None:
            shutil.rmtree(folder, ignore_errors=True)
            save_head(draft, folder) if isinstance(draft, Head) else save(draft, folder)
        options = best["options"] | ({"costs": _COSTS} if "costs" in best["options"] else {})
        place = "" if draft is None else DRAFTER
        boosted = dataclasses.replace(self.plain, method=best["method"], draft=place, options=options)
        boosted.write(directory)
        facts = {
            "model": self.plain.model, "machine": machine(self.target), "best": best, "tuned": list(tuned),
            "curves": {name: [dataclasses.asdict(one) for one in curve] for name, curve in curves.items()},
            "proof": proof, "survey": self.journal.results["survey"], "seconds": self.journal.seconds,
            "gains": {name: contest.gain_of_doubling(curve) for name, curve in curves.items()},
            "texts": self.journal.results.get("texts"), "options": dataclasses.asdict(self.options),
        }  # fmt: skip
        report.write(directory, facts)
        return boosted


def _describe(choice: dict[str, Any]) -> str:
    length, nodes = (choice["options"].get(key) for key in ("num_speculative_tokens", "tree_nodes"))
    name = choice["draft"] or choice["method"]
    through = " by method auto" if choice["method"] == "auto" and choice["draft"] else ""
    shape = f" with drafts of {length}" if length else f" with trees of {nodes}" if nodes else ""
    return name + through + shape
