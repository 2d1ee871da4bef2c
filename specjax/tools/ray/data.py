"""A stage for Ray Data that continues many prompts on many machines.

The module needs the extra ``ray``, on every machine of the cluster.
"""

from collections.abc import Sequence

from ...checkpoints.load import load
from ...drafters import all_options
from ...errors import RequestError, SpecjaxError
from ...parallel import make_mesh, parse_mesh
from ...text.generator import Generator
from ...text.result import Result
from .rows import check_columns, check_defaults, check_options, decode_rows

try:
    import pyarrow as pa  # pyright: ignore[reportMissingImports]
    from ray.data.block import BlockAccessor  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError(
        f"specjax.tools.ray.data needs Ray Data ({error}); install it with pip install 'specjax[ray]'"
    ) from None

COLUMNS = {
    "text": pa.string(),
    "token_ids": pa.list_(pa.int32()),
    "finish_reason": pa.string(),
    "target_calls": pa.int32(),
    "drafted": pa.int32(),
    "accepted": pa.int32(),
    "generated": pa.int32(),
    "mean_acceptance_length": pa.float64(),
    "error": pa.string(),
}
"""The columns that ``Generate`` adds, with their types."""

_SETTINGS = ("rule", "capacity", "processors")
"""The arguments of ``Generator`` that ``Generate`` has under the same names."""


class Generate:
    """Continues the prompts of a Ray dataset; a callable class for ``Dataset.map_batches``.

    Ray Data makes one object of the class in each replica. The arguments below go into
    ``fn_constructor_kwargs``:

        dataset.map_batches(
            Generate,
            fn_constructor_kwargs=dict(model="Qwen/Qwen3-8B", max_new_tokens=256),
            batch_size=32,
            num_gpus=1,
            compute=ray.data.ActorPoolStrategy(size=4),
        )

    A row has its prompt in one of the columns ``prompt`` (text), ``messages`` (a conversation) and
    ``prompt_token_ids``. A column with the name of an option, such as ``max_new_tokens``,
    ``temperature`` or ``seed``, is this option of its row; a missing value is the default. A row
    keeps its columns and gets those of ``COLUMNS``, with the meaning that they have in ``Result``
    and ``Stats``. Its text depends on the row alone, so a batch that Ray repeats after the death of
    a replica gives the same rows. The page on Ray names one exception.

    Args:
      model: the name of the target; see ``load``.
      method, draft: see ``Generator``. Drafts are names.
      dtype, revision: see ``load``.
      mesh: axes of a mesh of the replica's devices, such as "model=4".
      on_error: "column" gives a refused row its message in the column ``error``, and no text;
        "raise" ends the job. ``error`` is missing in all other rows.
      options: ``rule``, ``capacity``, ``processors`` and options of the method, see ``Generator``;
        and defaults of the options of a row, see ``Options``.

    Raises RequestError for arguments that do not fit.
    """

    def __init__(
        self,
        model: str,
        method: str | Sequence[str] | None = None,
        draft: str | Sequence[str] | None = None,
        *,
        dtype: str | None = None,
        revision: str | None = None,
        mesh: str | None = None,
        on_error: str = "column",
        **options,
    ):
        if on_error not in ("column", "raise"):
            raise RequestError(f"on_error {on_error!r} is unknown; use 'column' or 'raise'")
        self.on_error = on_error
        setting = {name: options.pop(name) for name in (*_SETTINGS, *all_options()) if name in options}
        self.defaults = check_defaults(options)
        devices = None if mesh is None else make_mesh(**parse_mesh(mesh))
        target = load(model, dtype, devices, revision)
        self.generator = Generator(target, method, draft, **setting)
        check_options(self.generator, self.defaults)

    def __call__(self, batch) -> pa.Table:
        """The rows of ``batch``, which may have any batch format, with the columns of ``COLUMNS``.

        Raises RequestError for a dataset whose columns do not fit, and with on_error="raise" the
        error of the first row that is refused.
        """
        table = BlockAccessor.for_block(BlockAccessor.batch_to_block(batch)).to_arrow()
        column = check_columns(table.column_names, tuple(COLUMNS))
        rows = list(BlockAccessor.for_block(table).iter_rows(public_row_format=True))
        outcomes = decode_rows(self.generator, rows, column, self.defaults)
        for outcome in outcomes:
            if isinstance(outcome, SpecjaxError) and self.on_error == "raise":
                raise outcome
        cells = [_cells(outcome) for outcome in outcomes]
        for name, kind in COLUMNS.items():
            table = table.append_column(name, pa.array([one.get(name) for one in cells], kind))
        return table


def _cells(outcome: Result | SpecjaxError) -> dict:
    """The cells of one row by column; a column that is left out is missing in the row."""
    if isinstance(outcome, SpecjaxError):
        return {"error": str(outcome)}
    return vars(outcome) | outcome.stats.as_dict()
