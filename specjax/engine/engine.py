"""The engine: one batch of fixed width, which requests join and leave between rounds."""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence

from ..checkpoints.load import LanguageModel
from ..core.checks import check_names, field_names, pop_fields
from ..drafters import all_options
from ..errors import RequestError
from ..parallel import is_first_host, several_hosts
from ..text.draft_devices import ApartSession
from ..text.generator import Generator, Prompt
from . import multi_host
from .block_reader import check_blocks, make_memory
from .constraints import Constraints
from .handle import Handle
from .options import EngineOptions
from .prefix_cache import PrefixCache, longest_shared_prompt
from .programs import Programs
from .request import read_blank, read_request, slot_arrays
from .rounds import Rounds
from .scheduler import Scheduler
from .sizes import Sizes
from .step_thread import StepThread


class Engine(StepThread):
    """Decodes requests that come at any time, in a batch of ``slots`` rows.

    A request waits for a free slot. Its prompt is read in chunks between rounds of the running
    rows, in blocks together with others. Its text does not depend on the requests that share the
    batch: it is that of a ``Generator`` for the same options and seed. Nothing is compiled after
    the first use of each program, see ``programs``.

    ``step`` drives the device. Handles call it, unless ``start`` has started a thread that does. A
    ``with`` block starts the thread, and waits at its end for all requests. The thread launches
    the next rounds before it hands out the tokens of the last ones, so that the device need not
    wait.

    Args:
      target, method, draft, rule, processors: as in ``Generator``. Models on the mesh of several
        hosts need an engine in each process: process 0 takes the requests, and the others call
        ``follow``.
      options: the sizes of the engine; by default those of ``EngineOptions()``.
      keywords: fields of ``EngineOptions``, such as ``slots=4``, which replace those of
        ``options``; and options of drafting, as in ``Generator``.

    Raises RequestError for a method whose rows share a state, for a draft on devices of its own,
    for an encoder-decoder, for slots that do not fit the memory, and for blocks that a method
    cannot have, or that are too few for a request of ``capacity``.
    """

    def __init__(
        self,
        target: LanguageModel | str,
        method: str | Sequence[str] | None = None,
        draft=None,
        *,
        options: EngineOptions | None = None,
        rule: str = "auto",
        processors: Sequence[Callable] = (),
        **keywords,
    ):
        # 1. Make the generator, and refuse models that an engine cannot serve.
        check_names(keywords, (*field_names(EngineOptions), *all_options()))
        self.options = options = dataclasses.replace(options or EngineOptions(), **pop_fields(EngineOptions, keywords))
        self.generator = Generator(target, method, draft, rule=rule, processors=processors, **keywords)
        self.target.config.refuse_encoder("an engine")
        session = self.generator.session
        if chooser := session.drafter.chooser:
            session.drafter = chooser.for_slots()
        if isinstance(session, ApartSession):
            raise RequestError("an engine has its draft on the target's devices; leave out the draft's mesh")
        self._is_shared = session.mesh is not None and several_hosts()
        if options.widths and session.mesh is not None:
            raise RequestError("an engine on a mesh computes all its slots in each round; leave out widths")
        if options.prefix_bytes and session.mesh is not None:
            raise RequestError("an engine on a mesh keeps no beginnings of prompts; leave prefix_bytes out, or give 0")
        if options.in_blocks:
            check_blocks(session)
        # 2. Make the parts of the engine.
        sizes = Sizes.of(options, self.generator)
        self.capacity = sizes.capacity
        self.programs = Programs(session, read_blank(self.generator, self.capacity), **sizes.of_programs(options))
        store_bytes = self.programs.row_bytes if sizes.prefix_bytes is None else sizes.prefix_bytes
        self.prefixes = PrefixCache(store_bytes, longest_shared_prompt(self.target.config))
        self._pace = sizes.pace()
        self.memory, self._reader = make_memory(self.programs, self.prefixes, self._pace, options)
        self.constraints = Constraints(options.constraint_states, options.constraint_classes, session.mesh)
        # 3. Begin with empty slots.
        self.slots = options.slots
        self._stepping = threading.Lock()
        self._updating = threading.Lock()
        super().__init__()
        self._scheduler = Scheduler(options.slots, self.constraints, self.memory, self.changed, sizes.prompts)
        parts = self.programs, self._scheduler, self.memory, self.constraints, self._pace
        self._rounds = Rounds(self.generator, *parts)

    def submit(
        self, prompt: Prompt | None = None, *, messages=None, sample=0, prompt_logprobs=None, standing=None, **options
    ) -> Handle:
        """Adds a request to the queue. Any thread may call this.

        Arguments are those of a ``Generator``'s call, for one prompt or one conversation. The text
        is that of the prompt's sample number ``sample`` in a call with the option ``n``. With
        ``prompt_logprobs`` the prompt is scored too, see ``request.read_request``. ``standing`` is
        its ``Standing`` among requests that wait for a slot.

        Constraints and scores are compiled in the caller's thread, and the running rows go on.

        Raises RequestError for bad input, for the option ``n``, and for a request that needs more
        positions than a slot has, or more states than the table of constraints.
        """
        if self._is_shared and not is_first_host():
            raise RequestError("process 0 takes the requests of an engine on several hosts; call follow() here")
        request = dict(
            prompt=prompt, messages=messages, sample=sample, prompt_logprobs=prompt_logprobs, options=options
        )
        return self._submit(dict(request=request, standing=standing))

    def _submit(self, arguments: dict) -> Handle:
        request = arguments["request"]
        batch = read_request(self.generator, **request, capacity=self.capacity, logprobs=self.options.logprobs)
        handle = Handle(self, batch, self.generator.drafter.depth, request["prompt_logprobs"], arguments["standing"])
        if handle.constraint is not None:
            self.constraints.check_size(handle.constraint)
            if not self._is_shared:
                self.programs.compile_constrained(self.constraints.prepare(handle.constraint))
        if handle.prompt_top is not None:
            self.programs.scores.compile(slot_arrays(batch.requests, 0), len(handle.prompt) - 1)
        self._scheduler.add(handle, arguments)
        return handle

    def step(self) -> bool:
        """Reads a chunk of a prompt, or several prompts, and runs the next rounds.

        Returns whether work is left. If the device fails, all requests end with its error.
        """
        with self._stepping:
            try:
                self._take_changes()
                if self._scheduler.num_unread:
                    self._rounds.hand_out()
                self._read_chunks()
                self._rounds.run(ahead=self.is_started and not self._is_shared)
            except Exception as error:
                self._fail(error)
                raise
        return self.has_work

    def compile_rounds(self) -> None:
        """Compiles the rounds of all ``widths`` and of all slots, before a request waits for them.

        It does nothing on several hosts, where requests compile the rounds of all slots.
        """
        with self._stepping:
            for width in () if self._is_shared else self.programs.widths:
                self.programs.finish(self.programs.launch(0, range(width)))

    def update(self, parameters=None, *, draft=None) -> None:
        """Replaces weights between two steps, as ``Generator.update``. Nothing is compiled anew.

        The draft changes at once, and no text with it. For the target, the call waits for requests
        that are read or decoded, and no other begins meanwhile. Any thread may call this, but not a
        callback of ``Handle.watch``.

        Raises RequestError on several hosts, and if structure, shapes or dtypes differ; the weights
        are then the old ones.
        """
        if self._is_shared:
            raise RequestError("an engine on several hosts keeps its weights; make a new engine for new ones")
        with self._stepping:
            self.generator.update(draft=draft)
        if parameters is None:
            return
        with self._updating:
            try:
                with self.changed:
                    self._scheduler.is_paused = True
                self.wait(lambda: self.num_running == 0)
                with self._stepping:
                    self.generator.update(parameters)
                    self.programs.forget_weights()
                    self._forget_texts()
            finally:
                with self.changed:
                    self._scheduler.is_paused = False
                    self.changed.notify_all()

    @property
    def target(self) -> LanguageModel:
        return self.generator.target

    @property
    def has_work(self) -> bool:
        """Whether a request waits, is being read or is being decoded."""
        return self._scheduler.has_work

    @property
    def num_running(self) -> int:
        """The number of requests that are read or decoded, or wait for memory to go on."""
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        """The number of requests that wait for a slot."""
        return self._scheduler.num_waiting

    def follow(self) -> None:
        """Makes the steps of process 0 until its engine stops.

        All other processes of a mesh call this.
        """
        while (changes := multi_host.receive()) is not None:
            arrivals, over = changes
            handles = self._scheduler.handles
            for i in over:
                handles[i].cancel()
            for arguments in arrivals:
                self._submit(arguments)
            self.step()

    def _take_changes(self) -> None:
        """Puts new requests into the queue, and frees the slots of cancelled ones.

        On several hosts process 0 tells the others of both.
        """
        arrivals, over, cancelled = self._scheduler.take_changes()
        if self._is_shared and is_first_host():
            multi_host.broadcast((arrivals, over))
        for row in self._scheduler.rows:
            if row.handle in cancelled:
                self.programs.release(row.slot)
                self._scheduler.free(row)
        for row in [row for row in self._scheduler.reading if row.handle in cancelled]:
            self._scheduler.drop_reading(row)

    def _read_chunks(self) -> None:
        """Reads chunks of the next prompts. Further ones follow where running rows may wait."""
        began = time.perf_counter()
        chunks = 0
        self._pace.share(self._scheduler.num_unread, len(self._scheduler.rows))
        while self._read_chunk():
            chunks += 1
            if not self._pace.has_room(chunks, time.perf_counter() - began, self._scheduler.unread_tokens):
                break

    def _read_chunk(self) -> bool:
        """Reads chunks of the next prompts, if a slot is free. Returns whether there was a prompt.

        The row of a prompt is decoded after its last chunk.
        """
        self._scheduler.take_next(self.programs.compile_seconds)
        if not self._scheduler.reading:
            return False
        for row in self._reader.read(self._scheduler.reading, running=bool(self._scheduler.rows)):
            self._scheduler.begin_decoding(row)
        return True

    def _fail(self, error: Exception) -> None:
        """Ends all requests with ``error``, and empties the slots."""
        handles = self._scheduler.clear()
        self._rounds.forget()
        self._forget_texts()
        for handle in handles:
            handle.end(error)
        if not self._is_shared:
            self.programs.empty()

    def _forget_texts(self) -> None:
        """Forgets what texts are kept for others."""
        self.prefixes.clear()
        self.memory.clear()
