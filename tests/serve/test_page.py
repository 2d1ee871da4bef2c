"""The page of the server in headless Chromium, against a Generator's calls."""

import shutil

import pytest
from support.serving import served, wait_until

import specjax

pytestmark = pytest.mark.slow
PROMPT, KEY = "def mean(values):\n", "secret"
POSITIONS = 3
DRAFT = dict(draft="tiny-python-draft", num_speculative_tokens=POSITIONS)


@pytest.fixture(scope="module")
def engine():
    with specjax.Engine("tiny-python", **DRAFT, slots=2, capacity=1024) as engine:
        yield engine


@pytest.fixture(scope="module")
def url(engine):
    from specjax.serve.app import make_app

    with served(make_app(engine, name="tiny-python", api_key=KEY)) as url:
        yield url


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    assert path, "install Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser, url):
    """The page with the key. A test fails if the page's script has an error."""
    page, errors = browser.new_page(), []
    page.on("pageerror", lambda error: errors.append(error))
    page.goto(url)
    page.fill("#key", KEY)
    yield page
    page.close()
    assert errors == []


def run(page, **fields) -> None:
    for name, value in fields.items():
        page.fill(f"#{name}", str(value))
    page.click("#run")


def wait_for_end(page) -> None:
    page.wait_for_selector("#run:not([disabled])", timeout=60_000)


@pytest.mark.parametrize("options", [dict(temperature=0), dict(temperature=1, seed=5)], ids=["greedy", "sampled"])
def test_the_text_and_its_figures_are_those_of_a_generator(page, options):
    expected = specjax.Generator("tiny-python", **DRAFT)(PROMPT, max_new_tokens=60, **options)
    run(page, prompt=PROMPT, length=60, **options)
    wait_for_end(page)
    assert page.text_content("#text") == expected.text
    stats = expected.stats
    for name, value in dict(
        tokens=60, rounds=stats.target_calls, drafted=stats.drafted, accepted=stats.accepted
    ).items():
        assert page.text_content(f"#{name}") == str(value)
    assert page.text_content("#rate") == f"{round(100 * stats.accepted / stats.drafted)} %"
    drafted = stats.drafted // POSITIONS  # rounds; those at the end of the text may draft fewer tokens
    shares = [f"{round(100 * count / drafted)} %" for count in stats.accepted_at]
    assert page.locator("#positions .row span:last-child").all_text_contents() == shares
    assert len(shares) == POSITIONS


def test_accepted_tokens_are_marked(page, engine):
    """The figures of each round come from an engine's own request with the same seed."""
    handle = engine.submit(PROMPT, max_new_tokens=40, temperature=1.0, seed=7)
    handle.result()
    encode, marked, place = engine.target.tokenizer.decode, "", 0
    for _, accepted, emitted in handle.rounds:
        marked += encode(handle.token_ids[place : place + accepted])
        place += emitted
    run(page, prompt=PROMPT, length=40, temperature=1, seed=7)
    wait_for_end(page)
    assert "".join(page.locator("#text mark").all_text_contents()) == marked != ""


def test_stop_ends_the_request_and_frees_its_slot(page, engine):
    run(page, prompt=PROMPT, length=900)
    page.wait_for_function("document.getElementById('text').textContent.length > 20")
    assert engine.has_work
    page.click("#stop")
    wait_for_end(page)
    wait_until(lambda: not engine.has_work)
    assert 20 < len(page.text_content("#text")) and int(page.text_content("#tokens")) < 900
    assert page.text_content("#error") == ""


def test_errors_are_shown_and_the_next_run_works(page):
    run(page, prompt=PROMPT, length=2000)
    wait_for_end(page)
    assert "too large" in page.text_content("#error") and page.text_content("#text") == ""
    run(page, key="wrong", length=8)
    wait_for_end(page)
    assert "the API key is missing or wrong" in page.text_content("#error")
    run(page, key=KEY)
    wait_for_end(page)
    assert page.text_content("#error") == "" and page.text_content("#tokens") == "8"


def test_text_of_the_model_is_no_html(page):
    run(page, prompt='# <b id="bold">bold</b> <b id="bold">bold</b> <b id="bold">', length=24)
    wait_for_end(page)
    assert page.locator("#bold").count() == 0


def test_characters_of_several_tokens_are_whole(page):
    """The script's own rule, on tokens whose bytes are halves of characters."""
    shown = """([text, tokens]) => {
        const shown = new Shown();
        shown.add("", tokens.slice(0, 2)); shown.add(text, tokens.slice(2)); shown.end();
        return document.getElementById("text").innerHTML;
    }"""
    half = lambda isDrafted: dict(text="\ufffd", isDrafted=isDrafted)
    tokens = [dict(text="a", isDrafted=True), half(True), half(True), dict(text="b", isDrafted=False), half(False)]
    assert page.evaluate(shown, ["aéb…", tokens]) == "<mark>aé</mark>b…"


def test_only_positions_that_were_drafted_have_bars(page):
    """The script's own figures: two positions of fifteen were drafted, and two of three methods chosen."""
    own = dict(rounds=[[2, 1, 2], [1, 1, 2], [0, 0, 1]], drafted=3, accepted=2, accepted_by_position=[2, *[0] * 14])
    own["choices"] = [["plain", 1, 1], ["n-grams, <b>4</b>", 2, 4], ["tree", 0, 0]]
    page.evaluate("own => figures({rounds: 0, tokens: 0, drafted: []}, own, 1)", own)
    assert page.locator("#positions .row span:last-child").all_text_contents() == ["100 %", "0 %"]
    assert page.locator("#arms .row span:first-child").all_text_contents() == ["plain (1)", "n-grams, <b>4</b> (2)"]
    assert page.locator("#arms .row span:last-child").all_text_contents() == ["1.00", "2.00"]


def test_the_load_of_the_server_is_shown(page, engine):
    shows = "([id, text]) => document.getElementById(id).textContent.startsWith(text)"
    page.wait_for_function(shows, arg=["running", "0 of 2"])
    handle = engine.submit(PROMPT, max_new_tokens=900, ignore_eos=True)
    page.wait_for_function(shows, arg=["running", "1 of 2"], polling=20)
    handle.cancel()
    texts = {name: page.text_content(f"#{name}") for name in ("waiting", "filled", "memory", "compiling")}
    assert (texts["waiting"], texts["compiling"]) == ("0", "0") and texts["filled"].endswith(" %")
    assert 50 < int(texts["memory"].removesuffix(" MB").replace(",", "")) < 50_000
