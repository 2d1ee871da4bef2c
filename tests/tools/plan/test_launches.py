"""Counts of launches against counts by hand, on texts in the form of XLA's."""

import pytest

from specjax.tools.plan import launches

PROGRAM = """
HloModule jit_run, is_scheduled=true

%fused_add (a: f32[8], b: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %b = f32[8]{0} parameter(1)
  %multiply.1 = f32[8]{0} multiply(%a, %b)
  ROOT %add.1 = f32[8]{0} add(%multiply.1, %b)
}

%less (x: f32[], y: f32[]) -> pred[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %lt.1 = pred[] compare(%x, %y), direction=LT
}

%command_buffer (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %loop_add_fusion = f32[8]{0} fusion(%p, %p), kind=kLoop, calls=%fused_add
  %cublas = (f32[8]{0}, s8[64]{0}) custom-call(%loop_add_fusion), custom_call_target="__cublas$gemm"
  ROOT %get = f32[8]{0} get-tuple-element(%cublas), index=0
}

%inner_body (q: (s32[], f32[8])) -> (s32[], f32[8]) {
  %q = (s32[], f32[8]{0}) parameter(0)
  %i = s32[] get-tuple-element(%q), index=0
  %x.1 = f32[8]{0} get-tuple-element(%q), index=1
  %wrapped_add = s32[] fusion(%i, %i), kind=kLoop, calls=%fused_add
  %call.1 = f32[8]{0} call(%x.1), to_apply=%command_buffer
  ROOT %tuple.1 = (s32[], f32[8]{0}) tuple(%wrapped_add, %call.1)
}

%inner_condition (q.1: (s32[], f32[8])) -> pred[] {
  %q.1 = (s32[], f32[8]{0}) parameter(0)
  ROOT %wrapped_compare = pred[] fusion(%q.1), kind=kLoop, calls=%fused_add
}

%few (f: f32[8]) -> f32[8] {
  ROOT %f = f32[8]{0} parameter(0)
}

%many (m: f32[8]) -> f32[8] {
  %m = f32[8]{0} parameter(0)
  %copy.1 = f32[8]{0} copy(%m)
  ROOT %sort.1 = f32[8]{0} sort(%copy.1), dimensions={0}, to_apply=%less
}

%body (s: (s32[], f32[8])) -> (s32[], f32[8]) {
  %s = (s32[], f32[8]{0}) parameter(0)
  %known = (s32[], f32[8]{0}) while(%s), condition=%inner_condition, body=%inner_body, backend_config={"known_trip_count":{"n":"5"},"known_init_step":{"init":"0","step":"1"}}
  %unknown = (s32[], f32[8]{0}) while(%known), condition=%inner_condition, body=%inner_body
  %y = f32[8]{0} get-tuple-element(%unknown), index=1
  %b.1 = f32[8]{0} bitcast(%y)
  %branch = pred[] constant(false)
  %conditional = f32[8]{0} conditional(%branch, %b.1, %b.1), true_computation=%few, false_computation=%many
  %start = (f32[8]{0}, f32[8]{0}) all-reduce-start(%conditional), to_apply=%less
  %done = f32[8]{0} all-reduce-done(%start)
  ROOT %tuple.2 = (s32[], f32[8]{0}) tuple(%branch, %done)
}

%condition (s.1: (s32[], f32[8])) -> pred[] {
  %s.1 = (s32[], f32[8]{0}) parameter(0)
  ROOT %wrapped_compare.1 = pred[] fusion(%s.1), kind=kLoop, calls=%fused_add
}

ENTRY %main (Arg_0: f32[8]) -> f32[8] {
  %Arg_0 = f32[8]{0} parameter(0)
  %zero = s32[] constant(0)
  %copy.2 = f32[8]{0} copy(%Arg_0)
  %tuple.3 = (s32[], f32[8]{0}) tuple(%zero, %copy.2)
  %rounds = (s32[], f32[8]{0}) while(%tuple.3), condition=%condition, body=%body
  ROOT %result = f32[8]{0} get-tuple-element(%rounds), index=1
}
"""
INNER = 1 + 2  # the counter, and the two launches of the command buffer
ROUND = 5 * INNER + (INNER + 1) + 2 + 1 + 1  # known loop, unknown loop, longer branch, all-reduce, condition


def test_round_and_program():
    assert launches.in_round(PROGRAM) == ROUND
    assert launches.in_program(PROGRAM) == ROUND + 1


def test_a_layer_is_a_difference():
    deep = PROGRAM.replace('"n":"5"', '"n":"9"')
    assert launches.a_layer(PROGRAM, deep, 2) == 4 * INNER / 2


def test_a_program_without_loops_has_no_round():
    text = "\n".join(["ENTRY %main (p: f32[8]) -> f32[8] {", "  ROOT %copy = f32[8]{0} copy(%p)", "}"])
    assert launches.in_round(text) == 0
    assert launches.in_program(text) == 1


def test_other_texts_are_refused():
    with pytest.raises(ValueError, match="ENTRY"):
        launches.in_program("module @jit_run {}")
