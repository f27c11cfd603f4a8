"""`santagen doctor`: what it says of this machine, of broken ones, and of machines with GPUs.

No GPU is needed: what follows from a report is tested on reports.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from santagen.cli import doctor, doctor_machine, doctor_model, doctor_probe
from santagen.cli.doctor_advice import findings
from santagen.cli.doctor_table import table
from santagen.errors import SantagenError
from tests.cli.helpers import Cli, Ran, process

GIB = 1 << 30
SECRET = "hf_" + "s3cr3t" * 6
Change = Callable[[dict[str, Any]], object]


def h200() -> dict[str, Any]:
    return {
        "name": "NVIDIA H200", "memory_bytes": 140 * GIB, "free_bytes": 139 * GIB,
        "capability": "9.0", "error": None,
    }  # fmt: skip


def sound_report() -> dict[str, Any]:
    """A machine with one GPU on which nothing is to be said."""
    backends = {
        name: {"usable": True, "reason": f"attention {name}"} for name in ("flash", "torch")
    }
    return {
        "ready": True,
        "python": {"santagen": "0.1.0", "version": "3.12.1", "executable": "py", "system": "Linux"},
        "packages": {"torch": {"version": "2.13.0", "least": "2.11", "problem": ""}},
        "driver": {"version": "580.1", "gpus": ["NVIDIA H200"], "problem": None},
        "cpu": {"cores": 8, "usable": 8, "omp_num_threads": None, "mkl_mode": "AUTO,STRICT",
                "mkl_strict": True},
        "memory": {"total_bytes": 64 * GIB, "available_bytes": 60 * GIB},
        "disk": {"path": "/home/me", "free_bytes": 90 * GIB, "writable": True},
        "hub": {"error": None, "models": 2, "offline": False, "token": True,
                "cache": {"path": "/cache", "free_bytes": 90 * GIB, "writable": True}},
        "sandbox": {"tier": "namespaces", "refused": {}, "problem": None},
        "humaneval_problems": True,
        "model": {"model": "x", "state": "folder", "directory": "x", "refusals": [],
                  "parameters": 1_100_000_000, "packed_bytes": None, "gpu_dtype": "bfloat16"},
        "torch": {"version": "2.13.0", "cuda": "13.0", "threads": 8, "cpu_features": "AVX512",
                  "mkl": True, "gloo": True, "nccl": True, "error": None},
        "gpus": [h200()],
        "gpu_problem": None,
        "engine": {"device": "cuda", "dtype": "bfloat16", "error": None,
                   "triton": {"installed": True, "used": True, "error": None}},
        "attention": {"reason": "attention triton: prefill and decode", "backends": backends},
    }  # fmt: skip


def torch_sees_no_gpu(report: dict[str, Any], problem: str | None = None) -> None:
    report["engine"] |= {"device": "cpu", "dtype": "float32"}
    report["gpus"], report["gpu_problem"] = [], problem


def on_cpu(report: dict[str, Any]) -> None:
    torch_sees_no_gpu(report)
    report["driver"] = None


@pytest.fixture(scope="module")
def ran() -> Ran:
    return process("doctor", "--json", env={**os.environ, "HF_TOKEN": SECRET})


class TestThisMachine:
    def test_json_is_all_of_standard_output(self, ran: Ran) -> None:
        report = json.loads(ran.out)
        assert ran.code == 0 and report["ready"] is True
        assert report["torch"]["version"] and report["torch"]["threads"] >= 1
        assert report["cpu"]["usable"] <= report["cpu"]["cores"]
        assert 0 < report["memory"]["available_bytes"] <= report["memory"]["total_bytes"]
        assert report["disk"]["path"] == str(Path.cwd())
        assert {"flash", "triton", "torch"} == set(report["attention"]["backends"])
        assert report["model"]["state"] == "folder"  # the bundled one
        assert report["sandbox"]["tier"] or report["sandbox"]["problem"]

    def test_the_attention_it_names_is_the_one_a_run_takes(self, ran: Ran) -> None:
        from santagen import LLM

        assert json.loads(ran.out)["attention"]["reason"] in LLM().describe()

    def test_a_token_is_known_to_be_there_and_never_shown(self, ran: Ran) -> None:
        assert json.loads(ran.out)["hub"]["token"] is True
        assert SECRET not in ran.out + ran.err

    def test_it_loads_nothing_slow(self) -> None:
        code = (
            "import sys; from santagen.cli.doctor_probe import probe; probe(None)\n"
            "print({'datasets', 'transformers', 'pandas', 'torch._dynamo'} & set(sys.modules))"
        )
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert child.stdout == "set()\n"

    def test_show_config(self, cli: Cli) -> None:
        assert "[doctor]" in cli("doctor", "--show-config", "-m", "x").out


class TestBrokenTorch:
    @pytest.fixture
    def with_torch(self, tmp_path: Path) -> Callable[[str], dict[str, str]]:
        """The environment of a process in which `import torch` runs this code instead."""

        def environment(code: str) -> dict[str, str]:
            (tmp_path / "torch").mkdir()
            (tmp_path / "torch" / "__init__.py").write_text(code)
            path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
            return {**os.environ, "PYTHONPATH": path}

        return environment

    @pytest.mark.parametrize(
        ("code", "reason"),
        [
            ("raise ModuleNotFoundError(\"No module named 'torch'\")", "No module named 'torch'"),
            (
                "raise OSError('libtorch_cpu.so: cannot open\\nmore')",
                "libtorch_cpu.so: cannot open",
            ),
            ("import os; os.abort()", "SIGABRT"),
            ("import sys; sys.exit('no such processor')", "no such processor"),
            ("version = None", "AttributeError"),  # half an installation
        ],
    )
    def test_it_says_so_and_ends_with_2(
        self, with_torch: Callable[[str], dict[str, str]], code: str, reason: str
    ) -> None:
        ran = process("doctor", env=with_torch(code))
        assert ran.code == 2
        assert "error: torch can't be used (" in ran.err and reason in ran.err
        assert "hint: Install it anew: pip install" in ran.err
        assert "Traceback" not in ran.err
        assert "memory" in ran.err  # the rest is told all the same

    def test_one_that_hangs(
        self,
        with_torch: Callable[[str], dict[str, str]],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        path = with_torch("import time; time.sleep(60)")["PYTHONPATH"]
        monkeypatch.setenv("PYTHONPATH", path)
        monkeypatch.setattr(doctor, "PROBE_SECONDS", 1)
        assert "did not start within 1 seconds" in doctor.probe(None)["torch"]["error"]


class TestModels:
    def test_a_folder_that_would_be_refused(self, cli: Cli, tmp_path: Path) -> None:
        ran = cli("doctor", "-m", tmp_path)
        assert (ran.code, ran.out) == (2, "")
        labels = {line.split(" ")[0] for line in ran.err.splitlines()}
        assert {"santagen", "torch", "GPU", "attention", "CPU", "memory", "disk", "hub"} <= labels
        assert "\nready        no" in ran.err
        assert "\nerror: " in ran.err and "config.json" in ran.err and "\nhint: " in ran.err

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        found = doctor_model.examine(str(tmp_path / "absent"))
        assert found["state"] == "absent"
        assert found["refusals"][0]["message"].startswith("There is no model folder")

    def test_offline_a_hub_model_that_is_not_cached(self, tmp_path: Path) -> None:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
        ran = process("doctor", "-m", "some/model", env=environment)
        assert ran.code == 2
        assert "HF_HUB_OFFLINE is set" in ran.err and "offline (HF_HUB_OFFLINE)" in ran.err

    def hub(self, monkeypatch: pytest.MonkeyPatch, answer: Callable[[], Any]) -> None:
        import huggingface_hub

        class Api:
            def model_info(self, *_: Any, **__: Any) -> Any:
                return answer()

        monkeypatch.setattr(huggingface_hub, "HfApi", Api)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(doctor_model, "_cached", lambda _: None)

    def test_a_hub_model_s_download_is_weights_at_the_top(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sizes = {"a.safetensors": 5, "b.safetensors": 7, "x/c.safetensors": 100, "p.bin": 1000}
        files = [SimpleNamespace(rfilename=name, size=size) for name, size in sizes.items()]
        self.hub(monkeypatch, lambda: SimpleNamespace(siblings=files))
        found = doctor_model.examine("some/model")
        assert (found["state"], found["download_bytes"], found["refusals"]) == ("hub", 12, [])

    def test_a_hub_that_hangs_is_left(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hub(monkeypatch, lambda: time.sleep(20))
        monkeypatch.setattr(doctor_model, "SECONDS", -0.8)
        started = time.perf_counter()
        found = doctor_model.examine("some/model")
        assert time.perf_counter() - started < 10
        assert "no answer" in found["refusals"][0]["message"]

    def test_a_hub_that_refuses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse() -> None:
            raise ConnectionError("https://user:secret@hub")

        self.hub(monkeypatch, refuse)
        message = doctor_model.examine("some/model")["refusals"][0]["message"]
        assert "ConnectionError" in message and "secret" not in message


class TestFindings:
    def test_nothing_to_say(self) -> None:
        assert findings(sound_report()) == []

    @pytest.mark.parametrize(
        ("change", "level", "word", "remedy"),
        [
            (lambda r: r["packages"].update(
                numpy={"version": None, "least": "1.26", "problem": "not installed"}),
             "stop", "numpy: not installed", "pip install -U 'numpy>=1.26'"),
            (lambda r: r["packages"]["torch"].update(version="2.5", problem="older than 2.11"),
             "advice", "older than 2.11", "torch>=2.11"),
            (lambda r: r["torch"].update(error="broken"), "stop", "broken", "torch>=2.11"),
            (lambda r: r["engine"].update(error="ImportError: x"), "stop", "ImportError", "anew"),
            (lambda r: (torch_sees_no_gpu(r), r["torch"].update(cuda=None)),
             "advice", "built without CUDA", "CUDA build"),
            (lambda r: torch_sees_no_gpu(r, "RuntimeError: driver too old"),
             "advice", "driver too old", "driver"),
            (torch_sees_no_gpu, "advice", "CUDA_VISIBLE_DEVICES hides", "Check"),
            (lambda r: (on_cpu(r), r.update(driver={"version": None, "gpus": [],
                                                    "problem": "no devices"})),
             "advice", "no devices", "driver"),
            (lambda r: r["gpus"][0].update(error="no kernel image", free_bytes=None),
             "stop", "no kernel image", "--device cpu"),
            (lambda r: r["gpus"][0].update(free_bytes=20 * GIB), "advice", "20.00 GiB", "End"),
            (lambda r: r["gpus"].append(h200()), "advice", "2 GPUs", "-dp 2"),
            (lambda r: r["engine"]["triton"].update(error="no C compiler"),
             "stop", "no C compiler", "gcc"),
            (lambda r: r["engine"]["triton"].update(installed=False, used=False),
             "advice", "Without Triton", "pip install triton"),
            (lambda r: r["model"].update(refusals=[{"message": "Torn.", "hint": "Mend it."}]),
             "stop", "Torn.", "Mend it."),
            (lambda r: r["model"].update(parameters=80_000_000_000),
             "stop", "149.01 GiB", "GPTQ"),
            (lambda r: (on_cpu(r), r["model"].update(parameters=20_000_000_000)),
             "stop", "74.51 GiB as float32", "--dtype bfloat16"),
            (lambda r: r["disk"].update(free_bytes=5 << 20), "advice", "5.00 MiB", "--resume"),
            (lambda r: r["disk"].update(writable=False), "advice", "/home/me", "-o"),
            (lambda r: r["hub"]["cache"].update(writable=False), "advice", "/cache", "HF_HOME"),
            (lambda r: r["hub"].update(error="it does not import"), "stop", "import", "hub"),
            (lambda r: r["cpu"].update(usable=2), "advice", "8 threads for 2", "OMP_NUM_THREADS=2"),
            (lambda r: (on_cpu(r), r["cpu"].update(mkl_mode="COMPATIBLE", mkl_strict=False)),
             "advice", "COMPATIBLE is set", "--max-num-seqs"),
            (lambda r: (on_cpu(r), r["cpu"].update(mkl_mode=None, mkl_strict=False)),
             "advice", "no Intel processor", "--max-num-seqs"),
            (lambda r: r["sandbox"].update(tier="plain", refused={"bubblewrap": "no bwrap"}),
             "advice", "no bwrap", "--unsafe"),
            (lambda r: r["sandbox"].update(tier=None, problem="needs Linux"),
             "advice", "needs Linux", "generate is not concerned"),
        ],
    )  # fmt: skip
    def test_one_fault_one_finding(
        self, change: Change, level: str, word: str, remedy: str
    ) -> None:
        report = sound_report()
        change(report)
        [finding] = findings(report)
        assert finding["level"] == level
        assert word in finding["message"] and finding["message"].endswith(".")
        assert remedy in finding["hint"]

    def test_a_packed_model_needs_only_its_packed_size(self) -> None:
        report = sound_report()
        report["model"] |= {"parameters": 80_000_000_000, "packed_bytes": 40 * GIB}
        assert findings(report) == []

    def test_several_gpus_hold_what_one_does_not(self) -> None:
        report = sound_report()
        report["gpus"].append(h200())
        report["model"]["parameters"] = 80_000_000_000
        stop = findings(report)[0]
        assert stop["level"] == "stop" and "-tp 2" in stop["hint"]

    @pytest.mark.parametrize(("free", "level"), [(1 * GIB, "stop"), (9 * GIB, "advice")])
    def test_a_download_needs_its_room(self, free: int, level: str) -> None:
        report = sound_report()
        report["model"] = {
            "model": "a/b", "state": "hub", "directory": None, "refusals": [],
            "download_bytes": 4 * GIB,
        }  # fmt: skip
        report["hub"]["cache"]["free_bytes"] = free
        [finding] = findings(report)
        assert finding["level"] == level and "4.00 GiB" in finding["message"]

    def test_what_stops_comes_first(self) -> None:
        report = sound_report()
        report["gpus"].append(h200())
        report["engine"]["triton"]["error"] = "x"
        assert [finding["level"] for finding in findings(report)] == ["stop", "advice"]


def test_the_table_of_a_gpu_machine() -> None:
    lines = table(sound_report())
    gpu = next(line for line in lines if line.startswith("GPU"))
    for part in ("NVIDIA H200", "140.00 GiB", "139.00 GiB free", "capability 9.0", "driver 580.1"):
        assert part in gpu
    assert any("over nccl and gloo" in line for line in lines)
    assert lines[-1].endswith("yes: santagen generate runs on the GPU")


def test_the_table_stands_every_gap() -> None:
    report = copy.deepcopy(sound_report())
    report |= {"gpus": [], "engine": {}, "attention": {}, "torch": {"error": "x"}, "ready": False}
    report["memory"] = {"total_bytes": None, "available_bytes": None}
    report["hub"] = {"error": "x"}
    report["sandbox"] = {"tier": None, "refused": {"namespaces": "no"}, "problem": "x"}
    assert "torch can't use it" in "\n".join(table(report))


class TestTheProbe:
    def test_a_kernel_is_compiled_and_compared(self) -> None:
        pytest.importorskip("triton")
        code = (
            "import torch, json; from santagen.cli import doctor_probe\n"
            "print(json.dumps(doctor_probe._triton(torch.device('cpu'))))\n"
            "import santagen.kernels.embedding_triton as kernel\n"
            "kernel.launch = lambda ids, at, wte, wpe: wte * 0\n"
            "print(json.dumps(doctor_probe._triton(torch.device('cpu'))))"
        )
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        child = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )
        sound, spoilt = map(json.loads, child.stdout.splitlines())
        assert sound == {"installed": True, "used": True, "error": None}
        assert spoilt["error"] == "a kernel gives wrong numbers"

    def test_a_gpu_that_is_busy_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch

        shape = SimpleNamespace(name="G", total_memory=8, major=9, minor=0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: shape)

        def busy(_: int) -> None:
            raise RuntimeError("CUDA error: all devices are busy\nFor debugging consider ...")

        monkeypatch.setattr(torch.cuda, "mem_get_info", busy)
        gpu = doctor_probe._gpu(0)
        assert gpu["capability"] == "9.0" and gpu["free_bytes"] is None
        assert gpu["error"] == "RuntimeError: CUDA error: all devices are busy"

    def test_a_model_s_own_shape_is_probed(self, bundled_model: Path, tmp_path: Path) -> None:
        own, usual = doctor_probe._shape(str(bundled_model)), doctor_probe._shape(None)
        assert own.n_embd != usual.n_embd == 2048
        (tmp_path / "config.json").write_text("{")  # which the model's own part refuses
        assert doctor_probe._shape(str(tmp_path)) == usual


class TestTheDriver:
    def answer(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> Any:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        return doctor_machine.driver()

    def test_gpus(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        found = self.answer(monkeypatch, tmp_path, 'echo "580.1, NVIDIA H200"')
        assert found == {"version": "580.1", "gpus": ["NVIDIA H200"], "problem": None}

    def test_no_gpu(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        found = self.answer(monkeypatch, tmp_path, 'echo "No devices were found"; exit 6')
        assert found["problem"] == "No devices were found"

    def test_no_tool(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        assert doctor_machine.driver() is None


def test_versions_compare_by_number() -> None:
    assert doctor_machine._problem("numpy", "1.9.1") == ""
    assert doctor_machine._problem("numpy", "999.0") == "older than 999.0"
    assert doctor_machine._problem("no-such-package-here", None) == "not installed"


def test_a_disk_that_can_t_be_written_or_is_not_there(tmp_path: Path) -> None:
    found = doctor_machine.disk(tmp_path / "not" / "yet")
    assert found["free_bytes"] > 0 and found["writable"]


def test_a_sandbox_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise SantagenError("No sandbox works here.")

    monkeypatch.setattr("santagen.evaluation.workers.find_sandbox", refuse)
    assert doctor_machine.sandbox() == {
        "tier": None, "refused": {}, "problem": "No sandbox works here."
    }  # fmt: skip
