"""The kernels for Arm, in the hands of LLVM: their instructions, calls and registers."""

import re

import llvmlite.binding as binding
import pytest

from specjax.kernels.cpu import (
    attention_llvm,
    llvm,
    norms_llvm,
    processor,
    product_llvm,
    rounded_rows_llvm,
    tiles,
    tiles_llvm,
)

LINUX, MAC = "aarch64-unknown-linux-gnu", "arm64-apple-darwin"
PROCESSORS = [(LINUX, "neoverse-n1"), (LINUX, "neoverse-v1"), (LINUX, "neoverse-v2"), (MAC, "apple-m1")]
WITHOUT_DOT = LINUX, "cortex-a72"
INPUTS, OUTPUTS = 32, 16
"""Of a group, and of a tile."""


def compile_for(system: str, name: str, make, *options) -> str:
    """The assembly of a kernel. LLVM refuses instructions that the processor lacks."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple(system).create_target_machine(cpu=name, opt=3)
    module = make("kernel", *options).module
    module.triple = system
    return machine.emit_assembly(llvm.optimised(module, machine))


def loops(assembly: str) -> list[list[str]]:
    """The instructions of each loop without others in it: a label's, up to the jump back."""
    found, label, body = [], None, []
    for line in assembly.splitlines():
        code = re.split("//|;", line)[0].strip()
        if code.endswith(":"):
            label, body = code[:-1], []
        elif code and not code.startswith("."):
            body.append(code)
            if label and re.match(rf"(b|cbn?z|tbn?z)\b.*\b{re.escape(label.lstrip('.'))}$", code):
                found.append(list(body))
    return found


def spills(code: list[str]) -> int:
    """The vectors that are written to the stack or read from it."""
    return sum(bool(re.match(r"\s*(st|ld)(r|p)\s+q.*\[sp", line)) for line in code)


def calls(assembly: str) -> set[str]:
    """The functions of others, also those that are reached by a table of addresses."""
    called = set(re.findall(r"\bbl\s+_?(\w+)", assembly)) | set(re.findall(r"\b_(\w+)@GOTPAGE\b", assembly))
    return {name for name in called if not name.startswith(("kernel", "specjax_"))}


@pytest.mark.parametrize("system, name", PROCESSORS)
@pytest.mark.parametrize("bits, offsets", [(4, True), (4, False), (8, False)])
@pytest.mark.parametrize("exact", [False, True])
def test_the_product_is_a_loop_of_dot_products(system, name, bits, offsets, exact):
    """A dot product has 16 numbers. Exact rows take three: of high bytes, low bytes and ones."""
    for rows in (1, 3):
        assembly = compile_for(
            system, name, tiles_llvm.tile_product, rows, 3, "asimddp", bits, INPUTS, offsets, True, exact
        )
        body = max(loops(assembly), key=len)
        dots = sum("sdot" in line for line in body)
        assert dots == INPUTS * OUTPUTS / 16 * (3 if exact else rows)
        assert spills(body) < 0.05 * len(body) and len(body) < 5 * dots
        assert calls(assembly) == {"malloc", "free"}


@pytest.mark.parametrize("system, name", [*PROCESSORS, WITHOUT_DOT])
def test_kernels_of_floats_fit_the_registers(system, name):
    for make, *options in [
        (product_llvm.product, 1, 3, False, False), (product_llvm.product, 8, 3, False, True),
        (norms_llvm.row_norms, True, True), (norms_llvm.row_norms, False, False),
        *((rounded_rows_llvm.rounded_rows, group, most, most > 127) for group in (8, 24, 32) for most in (127, 32767)),
    ]:  # fmt: skip
        assembly = compile_for(system, name, make, *options)
        assert calls(assembly) <= {"malloc", "free"}
        assert spills(assembly.splitlines()) <= 0.02 * assembly.count("\n")


@pytest.mark.parametrize("system, name", [pytest.param(*PROCESSORS[0], marks=pytest.mark.slow), PROCESSORS[-1]])
def test_attention_keeps_most_of_its_sums_in_registers(system, name):
    for halves in (False, True):
        assembly = compile_for(system, name, attention_llvm.node_attention, 64, 3, False, None, halves)
        assert calls(assembly) == {"malloc", "free"}
        assert spills(assembly.splitlines()) < assembly.count("fmla")


def test_a_processor_without_dot_products_takes_the_plain_form():
    assembly = compile_for(*WITHOUT_DOT, tiles_llvm.tile_product, 4, 3, "plain", 4, INPUTS, True, False, True)
    assert "sdot" not in assembly and calls(assembly) == {"malloc", "free"}
    body = max(loops(assembly), key=len)
    assert spills(body) < 0.1 * len(body)


def test_the_system_names_the_instructions(monkeypatch):
    names = processor.matrix_extensions.__wrapped__
    for features, kind in {"fp asimd": "plain", "fp asimd asimddp i8mm bf16": "asimddp"}.items():
        text = f"processor\t: 0\nFeatures\t: {features}\nCPU part\t: 0xd40\n"
        monkeypatch.setattr(processor.Path, "read_text", lambda self, text=text: text)
        monkeypatch.setattr(tiles, "matrix_extensions", names)
        assert tiles.instructions() == kind
    assert names() == ("asimddp", "bf16", "i8mm")
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_max_isa=AVX2")
    monkeypatch.setattr(processor.platform, "machine", lambda: "aarch64")
    assert names() == ("asimddp", "bf16", "i8mm") and processor.level() is None


def test_each_mac_with_arm_has_dot_products(monkeypatch):
    monkeypatch.setattr(processor.platform, "system", lambda: "Darwin")
    for machine, names in {"arm64": ("asimddp",), "x86_64": ()}.items():
        monkeypatch.setattr(processor.platform, "machine", lambda machine=machine: machine)
        monkeypatch.setattr(processor, "_entry", lambda name: "")
        assert processor.matrix_extensions.__wrapped__() == names
