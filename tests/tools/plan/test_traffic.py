"""Bytes and collectives of a round, counted by hand in short programs."""

import textwrap

import pytest

from specjax.tools.plan.traffic import Collective, Program


def loop(body: str, computations: str = "", carry: str = "(s32[], f32[4,8])", runs: float = 1) -> Program:
    """The program of a loop with these instructions; ``%p`` is the carry, ``%x`` the float32 array [4, 8] in it."""
    return Program(
        textwrap.dedent(computations)
        + f"""
%cond (c: {carry}) -> pred[] {{
  %c = {carry} parameter(0)
  ROOT %go = pred[] constant(true)
}}

%body (p: {carry}) -> {carry} {{
  %p = {carry} parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[4,8]{{1,0}} get-tuple-element(%p), index=1
{textwrap.indent(textwrap.dedent(body).strip(), "  ")}
  ROOT %out = {carry} tuple(%i, %x)
}}

ENTRY %main (a: {carry}) -> {carry} {{
  %a = {carry} parameter(0)
  %early = f32[1000,1000]{{1,0}} broadcast(%a), dimensions={{}}
  ROOT %w = {carry} while(%a), condition=%cond, body=%body
}}
""",
        runs,
    )


def test_an_instruction_reads_its_operands_and_writes_its_result():
    """128 bytes read twice and 128 written; instructions outside the loop do not count."""
    assert loop("%s = f32[4,8]{1,0} add(%x, %x)").bytes_moved() == 3 * 128


def test_the_bytes_of_types():
    body = """
    %b = bf16[4,8]{1,0} convert(%x)
    %q = s4[4,8]{1,0} convert(%x)
    %m = pred[4,8]{1,0} compare(%x, %x), direction=GT
    """
    assert loop(body).bytes_moved() == (128 + 64) + (128 + 16) + (256 + 32)


def test_a_slice_counts_itself_and_a_write_its_part():
    body = """
    %row = f32[1,8]{1,0} dynamic-slice(%x, %i, %i), dynamic_slice_sizes={1,8}
    %new = f32[4,8]{1,0} dynamic-update-slice(%x, %row, %i, %i)
    """
    assert loop(body).bytes_moved() == 2 * 32 + 2 * 32


def test_a_slice_that_is_started_counts_itself():
    """A row of 32 bytes: read into a TPU's fast memory, or read and written."""
    start = (
        "%y = f32[4,8]{{1,0}} negate(%x)\n"
        "%s = ((f32[4,8]{{1,0}}), f32[1,8]{{1,0:T(8,128){}}}, s32[]{{:S(2)}}) slice-start(%y), slice={{[0:1], [0:8]}}"
    )
    negate = 2 * 128
    assert loop(start.format("S(1)")).bytes_moved() == negate + 32
    assert loop(start.format("")).bytes_moved() == negate + 64


FUSIONS = """
%reads_row (a: f32[4,8], i: s32[]) -> f32[8] {
  %a = f32[4,8]{1,0} parameter(0)
  %k = s32[] parameter(1)
  %row.1 = f32[1,8]{1,0} dynamic-slice(%a, %k, %k), dynamic_slice_sizes={1,8}
  ROOT %flat = f32[8]{0} bitcast(%row.1)
}

%writes_row (a: f32[4,8], r: f32[1,8], i: s32[]) -> f32[4,8] {
  %a.1 = f32[4,8]{1,0} parameter(0)
  %r.1 = f32[1,8]{1,0} parameter(1)
  %k.1 = s32[] parameter(2)
  %twice = f32[1,8]{1,0} add(%r.1, %r.1)
  ROOT %put = f32[4,8]{1,0} dynamic-update-slice(%a.1, %twice, %k.1, %k.1)
}
"""


def test_fusions_that_read_or_write_a_part():
    """A row read, 32 bytes, with its index, 4; a row written, 32 each for the old and the new row, with its index."""
    assert loop("%f = f32[8]{0} fusion(%x, %i), kind=kLoop, calls=%reads_row", FUSIONS).bytes_moved() == 32 + 4 + 32
    body = """
    %r = f32[1,8]{1,0} constant({...})
    %f = f32[4,8]{1,0} fusion(%x, %r, %i), kind=kLoop, calls=%writes_row
    """
    assert loop(body, FUSIONS).bytes_moved() == 32 + 4 + 32


def test_a_kernel_that_writes_in_place_counts_what_it_writes():
    """Two rows of 32 bytes, each read and written, and not the two arrays of which they become a part."""
    body = """
    %r = f32[1,8]{1,0} constant({...})
    %k = (f32[4,8]{1,0}, f32[4,8]{1,0}) custom-call(%r, %r, %x, %x), custom_call_target="kernel",\
 output_to_operand_aliasing={{0}: (2, {}), {1}: (3, {})}
    """
    assert loop(body).bytes_moved() == 2 * (32 + 32)


INNER = """
%more (q: (s32[], f32[4,8])) -> pred[] {
  %q = (s32[], f32[4,8]) parameter(0)
  ROOT %yes = pred[] constant(true)
}

%turn (q2: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %q2 = (s32[], f32[4,8]) parameter(0)
  %x2 = f32[4,8]{1,0} get-tuple-element(%q2), index=1
  %t = f32[4,8]{1,0} negate(%x2)
  %r2 = f32[4,8]{1,0} all-reduce(%t), replica_groups={{0,1}}, to_apply=%sum
  ROOT %again = (s32[], f32[4,8]) tuple(%t, %t)
}

%small (b: f32[4,8]) -> f32[4,8] {
  %b = f32[4,8]{1,0} parameter(0)
  ROOT %n = f32[4,8]{1,0} negate(%b)
}

%large (d: f32[4,8]) -> f32[4,8] {
  %d = f32[4,8]{1,0} parameter(0)
  %n1 = f32[4,8]{1,0} negate(%d)
  ROOT %n2 = f32[4,8]{1,0} negate(%n1)
}
"""


COUNTED = """
%below (q3: (s32[], f32[4,8])) -> pred[] {
  %limit = s32[] constant(6)
  %q3 = (s32[], f32[4,8]) parameter(0)
  %i3 = s32[] get-tuple-element(%q3), index=0
  ROOT %lt = pred[] compare(%i3, %limit), direction=LT
}
"""


def test_a_loop_with_a_counter_runs_from_its_start_to_its_limit():
    """libtpu writes no number of trips."""
    body = """
    %one = s32[] constant(1)
    %first = s32[]{:T(128)} copy(%one)
    %given = (s32[], f32[4,8]) tuple(%first, %x)
    %l = (s32[], f32[4,8]) while(%given), condition=%below, body=%turn
    """
    assert loop(body, INNER + COUNTED).collectives() == [Collective("all-reduce", 128, 5)]


@pytest.mark.parametrize(("trips", "times"), [(', backend_config={"known_trip_count":{"n":"5"}}', 5), ("", 3)])
def test_an_inner_loop_counts_as_often_as_it_runs(trips, times):
    """As often as the caller says if that depends on the data."""
    program = loop(f"%l = (s32[], f32[4,8]) while(%p), condition=%more, body=%turn{trips}", INNER, runs=3)
    assert program.bytes_moved() == times * 4 * 128
    assert program.collectives() == [Collective("all-reduce", 128, times)]


def test_of_a_conditional_the_largest_branch_counts():
    body = "%c2 = f32[4,8]{1,0} conditional(%i, %x, %x), branch_computations={%small, %large}"
    assert loop(body, INNER).bytes_moved() == 2 * 256


def test_asynchronous_instructions_count_once():
    body = """
    %g = (f32[4,8]{1,0}, f32[8,8]{1,0}) all-gather-start(%x), dimensions={0}
    %d = f32[8,8]{1,0} all-gather-done(%g)
    """
    assert loop(body).collectives() == [Collective("all-gather", 256, 1)]


def test_fast_memory_of_a_tpu():
    """A prefetch is one read, results that stay on the chip are none."""
    body = """
    %s = (f32[4,8]{1,0:T(8,128)S(1)}, f32[4,8]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%x)
    %d = f32[4,8]{1,0:T(8,128)S(1)} copy-done(%s)
    %n = f32[4,8]{1,0:T(8,128)S(1)} negate(%d)
    """
    assert loop(body).bytes_moved() == 128


PASS = """
%pass (q4: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %q4 = (s32[], f32[4,8]) parameter(0)
  %i4 = s32[] get-tuple-element(%q4), index=0
  %w4 = f32[4,8]{1,0:S(1)} get-tuple-element(%q4), index=1
  %n4 = f32[4,8]{1,0:S(1)} negate(%w4)
  ROOT %again4 = (s32[], f32[4,8]) tuple(%i4, %w4)
}
"""


def test_a_copy_of_a_weight_counts_for_each_read():
    """Two halves are copied into fast memory and joined there. Five passes read them, and one instruction before."""
    half = "((f32[4,8]{1,0}), f32[2,8]{1,0:S(1)}, s32[]{:S(2)}) slice-start"
    body = f"""
    %s = {half}(%x), slice={{[0:2], [0:8]}}
    %d = f32[2,8]{{1,0:S(1)}} slice-done(%s)
    %s2 = {half}(%x), slice={{[2:4], [0:8]}}
    %d2 = f32[2,8]{{1,0:S(1)}} slice-done(%s2)
    %whole = f32[4,8]{{1,0:S(1)}} custom-call(%d, %d2), custom_call_target="ConcatBitcast"
    %n = f32[4,8]{{1,0:S(1)}} negate(%whole)
    %given = (s32[], f32[4,8]{{1,0:S(1)}}) tuple(%i, %whole)
    %l = (s32[], f32[4,8]) while(%given), condition=%more, body=%pass, backend_config={{"known_trip_count":{{"n":"5"}}}}
    """
    assert loop(body, INNER + PASS).bytes_moved() == 6 * 128


def test_an_array_that_stays_in_fast_memory_counts_as_read():
    """Also where a conditional receives it in a tuple."""
    carry = "(s32[], f32[4,8], f32[2,8]{1,0:S(1)})"
    inside = """
    %inner (t: (f32[2,8], s32[])) -> f32[2,8] {
      %t = (f32[2,8]{1,0:S(1)}, s32[]) parameter(0)
      %kept.1 = f32[2,8]{1,0:S(1)} get-tuple-element(%t), index=0
      ROOT %n = f32[2,8]{1,0:S(1)} negate(%kept.1)
    }
    """
    body = """
    %kept = f32[2,8]{1,0:S(1)} get-tuple-element(%p), index=2
    %n3 = f32[2,8]{1,0:S(1)} negate(%kept)
    %n4 = f32[2,8]{1,0:S(1)} negate(%n3)
    %given = (f32[2,8]{1,0:S(1)}, s32[]) tuple(%kept, %i)
    %c3 = f32[2,8]{1,0:S(1)} conditional(%i, %given), branch_computations={%inner}
    """
    assert loop(body, inside, carry).bytes_moved() == 64 + 64


def test_a_program_without_a_loop_has_no_round():
    assert Program("ENTRY %main (a: f32[4]) -> f32[4] {\n  ROOT %a = f32[4]{0} parameter(0)\n}\n").bytes_moved() == 0


def test_copies_from_the_hosts_memory():
    """An array and the half of another: 128 and 64 bytes from the host, each written to memory once."""
    body = """
    %h = f32[4,8]{1,0:S(5)} get-tuple-element(%p), index=1
    %s = (f32[4,8]{1,0}, f32[4,8]{1,0:S(5)}, u32[]) copy-start(%h)
    %d = f32[4,8]{1,0} copy-done(%s)
    %t = ((f32[4,8]{1,0:S(5)}, s32[], s32[]), f32[2,8]{1,0}, u32[]) dynamic-slice-start(%h, %i, %i), dynamic_slice_sizes={2,8}
    %e = f32[2,8]{1,0} dynamic-slice-done(%t)
    """
    assert loop(body).bytes_from_host() == loop(body).bytes_moved() == 128 + 64
    assert loop("%s = f32[4,8]{1,0} copy(%x)").bytes_from_host() == 0
