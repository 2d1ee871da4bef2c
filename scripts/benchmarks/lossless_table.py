"""Tests the law of whole sequences for every option, method and rule; writes docs/results/lossless.md.

    python scripts/benchmarks/lossless_table.py [--draws 100000] [--methods tree]

With --methods it keeps the figures of the other methods. tests/support/grid/ has the cases and the
laws. tests/test_lossless.py runs the same cases with fewer draws.
"""

import sys
from textwrap import fill

from page import ROOT, Result, arguments, measured, section
from rich.progress import track

sys.path.insert(0, str(ROOT / "tests"))

from support.grid import CASES, DRAFTS, LENGTH, METHODS, V, count_draws, halve_after_repeat, p_values

from specjax import RequestError
from specjax.drafters import DraftModel
from specjax.rules import RULES
from specjax.rules.acceptance import Drawn, resolve
from specjax.tools.evaluate.planted_faults import FAULTS, plant
from specjax.tools.evaluate.report import markdown_table

RESULT = Result("lossless")
ROWS, WIDTH = 12_500, 7
COLUMNS = [f"{method}: {rule}" for method, (_, rules) in METHODS.items() for rule in rules]
QUESTION = "Does every option, with every method and rule, keep the target's own law of whole texts?"
TEXT = """Each cell is the p-value of a chi-square test. The test compares {draws:,} sequences from the whole
loop (prefill, drafts, verification, stops) with the probability of every sequence, enumerated in
numpy. A sequence has {length} tokens over a vocabulary of {vocabulary}. All cases are mixed in one batch.

The p-values of an exact method are spread evenly over 0 to 1. Of the {cells} below, {low} are under 0.05,
and the least is {least:.2g}. By chance alone these would be about {chance:.0f} and {expected:.2g}. A sequence
that is impossible under the law would give 0.

All columns use the same seeds. Some rules are the same test on a chain (recursive rejection,
multi-step and K-SEQ; traversal and block verification), and so have the same figures there. Under
sample and walk, the target draws every token with a key of the token's place. So every method gives
the same sequences, and columns drawn with the same keys have the same figures.

No cell is refused: every option works with every method and rule.
{missing}
{options}

*min_new_tokens* and *stop_token_ids* cover end-of-text tokens, which are stop tokens unless
`ignore_eos` is set. *regex* covers choices and JSON schemas, which become the same automaton.
*processor* is a user's own function of the two newest tokens. `max_new_tokens` ends the sequences
of all cases. `seed`, `logprobs`, streams and the place in a batch must not change the tokens;
`tests/requests/test_options.py` compares them for equality.

## Rules and methods

{greedy}

{rules}

## Wrong rules, planted

The test must fail for a wrong rule. These are the same draws with a known wrong rule
(`specjax verify --inject`):

{faults}
"""


def main():
    parser = arguments(__doc__)
    parser.add_argument("--draws", type=int, default=100_000, help=f"for each cell, in calls of {ROWS:,}")
    parser.add_argument(
        "--methods", nargs="*", default=list(METHODS), choices=METHODS, help="draw only these; keep other figures"
    )
    parser.add_argument("--render", action="store_true", help="only write the page, from the figures on disk")
    args = parser.parse_args()
    if not args.render:
        measure(args)
    results = RESULT.read()
    follows = (
        "- Any option may be combined with any method and rule of the table: the law of the texts stays the target's."
    )
    RESULT.write("Lossless, option by option", QUESTION, [section(results["conditions"], page(results))], follows)


def measure(args) -> None:
    """Draws the sequences, and saves the p-values after every column."""
    calls = -(-args.draws // ROWS)
    results = {"p_values": {}} | RESULT.read()
    results |= {"draws": calls * ROWS, "conditions": measured(note="random weights, of tests/support/grid")}
    known = results.setdefault("faults", {})
    missing = [fault for fault in FAULTS if len(args.methods) == len(METHODS) or fault not in known]
    for fault in track(missing, "planted faults"):
        drafter, rule = plant(fault, DraftModel(DRAFTS), RULES["block"])
        results["faults"][fault] = p_values(count_draws(drafter, rule, seed=1, rows=ROWS, calls=1)[0])

    grid = [(method, rule) for method in args.methods for rule in METHODS[method][1]]
    for method, rule in track(grid, "methods and rules"):
        drafter = METHODS[method][0]
        values = p_values(count_draws(drafter, rule, seed=1, rows=ROWS, calls=calls)[0])
        options = dict(seed=1, rows=ROWS // len(CASES), calls=calls, processors=(halve_after_repeat,))
        processed = count_draws(drafter, rule, **options)[0]
        values |= {"processor": p_values(processed, processed=True)["pooled"]}
        columns = results["p_values"] | {f"{method}: {rule}": values}
        results["p_values"] = {column: columns[column] for column in COLUMNS if column in columns}
        RESULT.save(results)
        print(method, rule, values, flush=True)


def page(results: dict) -> str:
    """The tables of the page, with what they say."""
    columns = results["p_values"]
    missing = [f"`{column}`" for column in COLUMNS if column not in columns]
    names = ", ".join(missing)
    left_out = ("temperature 0", "pooled")
    cells = [p for values in columns.values() for name, p in values.items() if name not in left_out]
    faults = [faults_row(name, values) for name, values in results["faults"].items()]
    return TEXT.format(
        draws=results["draws"],
        length=LENGTH,
        vocabulary=V,
        cells=len(cells),
        low=sum(p < 0.05 for p in cells),
        least=min(cells),
        chance=0.05 * len(cells),
        expected=1 / len(cells),
        missing=f"\n{fill(f'So far only the tests run {names}.', 100)}\n" if missing else "",
        options=options_table(columns),
        greedy=greedy_rules(),
        rules=rules_table(),
        faults=markdown_table(["rule", "shown by", "p-value", "all cases"], faults),
    )


def options_table(columns: dict) -> str:
    def shown(case: str, value: float | None) -> str:
        if value is None:
            return "-"  # a case that is newer than the measurement
        return "always the same" if case == "temperature 0" and value == 1 else f"{value:.2g}"

    tables = []
    names = list(columns)
    for some in (names[i : i + WIDTH] for i in range(0, len(names), WIDTH)):
        cases = (*CASES, "processor", "pooled")
        rows = [[case, *(shown(case, columns[name].get(case)) for name in some)] for case in cases]
        tables.append(markdown_table(["option", *(name.replace(": ", "<br>") for name in some)], rows))
    return "\n\n".join(tables)


def faults_row(name: str, values: dict) -> list[str]:
    shown = lambda value: "< 1e-300" if value < 1e-300 else f"{value:.1e}"
    case = "top_p" if name == "q-before-top-p" else "default"
    return [f"`{name}`", case, shown(values[case]), shown(values["pooled"])]


def greedy_rules() -> str:
    """The sentence on the rules at temperature 0."""
    *names, last = [f"`{name}`" for name, rule in RULES.items() if rule.judges_greedy]
    return f"At temperature 0 every rule but {', '.join(names)} and {last} is the greedy walk. Above it:"


def rules_table() -> str:
    """A table of the answers of ``resolve`` for each rule and each way to draw drafts."""
    methods: dict[Drawn, list[str]] = {}
    for name, (drafter, _) in METHODS.items():
        methods.setdefault(drafter.drawn, []).append(name)

    def describe(rule: str, drawn: Drawn) -> str:
        try:
            resolve(rule, drawn)
        except RequestError as error:
            return "refused: " + str(error).split(", and ")[0].split(" needs ")[1]
        if rule == "argmax_walk":
            return "refused above temperature 0"
        default = " (default)" if resolve("auto", drawn) is RULES[rule] else ""
        return "lossy, and `stats.lossy` says so; never by default" if RULES[rule].lossy else "lossless" + default

    head = ["rule", *("chosen, not drawn" if drawn is Drawn.CHOSEN else f"`{drawn}`" for drawn in methods)]
    drafts = ["drafts of", *("; ".join(names) for names in methods.values())]
    return markdown_table(
        head, [drafts, *([f"`{rule}`", *(describe(rule, drawn) for drawn in methods)] for rule in RULES)]
    )


if __name__ == "__main__":
    main()
