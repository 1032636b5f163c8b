import re

HEADINGS = [
    "System Info",
    "ONNX Runtime Info",
    "Python Environment",
    "CUDA / GPU Info",
    "CPU Info",
    "Versions of relevant libraries",
    "vLLM Info",
    "Environment Variables",
]


def test_headings_rows_and_secrets(ortloom):
    env = {
        "VLLM_API_KEY": "very-private",
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "ORTLOOM_NOTE": "my secret is out",
        "UNRELATED_NAME": "x",
    }
    done = ortloom("collect-env", env=env)
    assert done.returncode == 0
    rule = "=" * 30
    assert re.findall(rf"{rule}\n(.*)\n{rule}", done.stdout) == [
        f"{heading:^30}".rstrip() for heading in HEADINGS
    ]
    assert "VLLM_LOGGING_LEVEL           : DEBUG" in done.stdout
    for hidden in ("very-private", "my secret is out", "UNRELATED_NAME"):
        assert hidden not in done.stdout
    rows = dict(re.findall(r"^(.{29}): (.*)$", done.stdout, re.MULTILINE))
    rows = {label.rstrip(): text for label, text in rows.items()}
    import onnxruntime

    assert rows["ONNX Runtime version"] == onnxruntime.__version__
    for name in ("tensorrt", "tensorrt_ep", "cuda", "cpu", "plain"):
        assert rows[f"Provider {name}"]
    assert "no: " in rows["Provider tensorrt"]


def test_it_never_fails(ortloom):
    done = ortloom("collect-env", env={"ORTLOOM_CPU_ISA": "imaginary", "PATH": "/nonexistent"})
    assert done.returncode == 0
    assert "imaginary" in done.stdout
    assert "GCC version                  : not found" in done.stdout


def test_a_missing_library_is_a_row(ortloom):
    done = ortloom("collect-env", env={"ORTLOOM_NO_OPS": "1"})
    assert done.returncode == 0
    assert "switched off by ORTLOOM_NO_OPS" in done.stdout
    assert re.search(r"Provider plain +: selected", done.stdout)


def test_every_tier_has_a_row_with_its_state(ortloom):
    from ortloom.kernels.isa import isa_report

    done = ortloom("collect-env", env={"ORTLOOM_CPU_ISA": "portable"})
    rows = dict(re.findall(r"^ISA tier (\S+) *: (.*)$", done.stdout, re.MULTILINE))
    rows.pop("covers")
    assert list(rows) == [tier.name for tier in isa_report().tiers]
    assert rows["portable"] == "used"
    assert {text for text in rows.values() if not text.startswith("lacks ")} == {
        "used",
        "available",
    }


def test_a_switch_that_cannot_be_had_is_told(ortloom):
    done = ortloom("collect-env", env={"VT_CPU_QUANT_MMLA": "maybe"})
    assert done.returncode == 0
    assert "VT_CPU_QUANT_MMLA=maybe is unknown; choices: auto, 0, 1" in done.stdout
