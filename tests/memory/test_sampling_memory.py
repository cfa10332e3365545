"""What a diffusion pipeline holds: published sizes of its parts, what each offload leaves, and what does not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import run
from ridgeline.errors import UnknownNameError, WorkloadError
from ridgeline.facts.clusters import cluster
from ridgeline.graph.decoders import DEEP_SHRINK
from ridgeline.graph.denoiser_specs import DENOISERS
from ridgeline.graph.diffusion import UNETS
from ridgeline.memory.sampling import SamplingMemory, clip_params
from ridgeline.plan.sampling import Division, Sampling
from ridgeline.predict.sampling import sample

GIB = 2.0**30
ASKED = Sampling(width=1024, height=1024, steps=4)
SCENARIO = """\
[model]
name = "{name}"
[cluster]
name = "{on}"
[workload]
task = "diffusion"
width = 1024
height = 1024
steps = 4
{more}
"""


def held(name: str, by: Division | None = None, **more: object) -> SamplingMemory:
    return sample(name, cluster("8xH200-SXM"), replace(ASKED, **more), by).memory  # type: ignore[arg-type]


def test_flux_loads_what_was_published() -> None:
    """31.447 GiB in bf16: Hugging Face's blog, Exploring Quantization Backends in Diffusers."""
    weights = sum(part.weights_bytes for part in held("flux.1-dev").parts.values())
    assert weights / GIB == pytest.approx(31.447, rel=0.01)


@pytest.mark.parametrize(("shape", "params"), [((768, 12), 123_060_480), ((1024, 23), 340_387_840)])
def test_clip_has_its_published_parameters(shape: tuple[int, int], params: int) -> None:
    assert clip_params(*shape) == params


@pytest.mark.parametrize("name", ["flux.1-dev", "stable-diffusion-xl", "wan2.1-14b", "sana-1.6b"])
def test_offload_holds_less_and_takes_longer(name: str) -> None:
    size = {"width": 512, "height": 512} if name.startswith("wan") else {}
    costs = [
        sample(name, cluster("1xH200-SXM"), replace(ASKED, offload=way, **size))  # type: ignore[arg-type]
        for way in ("none", "model", "layers")
    ]
    peaks = [cost.memory.peak_bytes for cost in costs]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[2] < peaks[1] < peaks[0]
    assert costs[0].copied_s == 0 < costs[1].copied_s
    assert costs[1].seconds > costs[0].seconds


def test_only_what_divides_weights_divides_them() -> None:
    whole, seen = held("flux.1-dev"), held("flux.1-dev", Division(ulysses=4))
    shared = held("flux.1-dev", Division(tensor=4))
    assert seen.parts["denoiser"].weights_bytes == whole.parts["denoiser"].weights_bytes
    assert shared.parts["denoiser"].weights_bytes < 0.3 * whole.parts["denoiser"].weights_bytes
    assert shared.parts["words"] == whole.parts["words"]


def test_narrow_products_have_narrow_weights_and_pictures_alone_need_no_words() -> None:
    wide, narrow = held("flux.1-dev"), held("flux.1-dev", precision="fp8", decoded=False)
    assert narrow.parts["denoiser"].weights_bytes == pytest.approx(wide.parts["denoiser"].weights_bytes / 2)
    assert set(narrow.parts) == {"denoiser"}


@pytest.mark.parametrize("name", [*DENOISERS, *UNETS])
def test_every_model_has_a_network_and_pixels(name: str) -> None:
    size: dict[str, Any] = {}
    if name.startswith(("stable-diffusion-1", "stable-diffusion-2")):
        size = {"width": 512, "height": 512}
    deep = name in DENOISERS and DENOISERS[name].shrink[1] > DEEP_SHRINK  # no decoder is known
    parts = held(name, **size, **({"decoded": False} if deep else {})).parts
    assert {"denoiser"} | ({"pixels"} if not deep else set()) <= set(parts)
    assert all(part.weights_bytes > 0 for part in parts.values())


def write(folder: Path, name: str, on: str, more: str = "") -> str:
    file = folder / "a.toml"
    file.write_text(SCENARIO.format(name=name, on=on, more=more), encoding="utf-8")
    return str(file)


def test_flux_in_16_bits_does_not_fit_12_gb(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = write(tmp_path, "flux.1-dev", "1xRTX-4070")
    assert run(["predict", file]) == 1
    told = capsys.readouterr()
    assert "DOES NOT FIT" in told.out
    assert "nearest: offload = 'layers'" in told.err
    assert run(["predict", file, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["memory"]["fits"] is False
    assert run(["predict", write(tmp_path, "flux.1-dev", "1xRTX-4090", 'offload = "model"')]) == 0


def test_names_of_people_and_tables_are_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["predict", write(tmp_path, "sdxl", "1xRTX-4090"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "stable-diffusion-xl"
    assert run(["predict", "sdxl", "--on", "1xRTX-4090"]) == 0
    assert "assumed: width 1024, height 1024, steps 50" in capsys.readouterr().out
    assert run(["predict", "sdxl", "--serve", "--on", "1xRTX-4090"]) == 2
    assert "stable-diffusion-xl makes pictures" in capsys.readouterr().err


@pytest.mark.parametrize("guidance", [1, 2])
def test_an_unknown_model_is_told_with_the_nearest(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, guidance: int
) -> None:
    with pytest.raises(UnknownNameError, match=r"nearest: flux\.1-dev"):
        sample("flux.2-dev", cluster("8xH200-SXM"), ASKED, Division(guidance=guidance))
    file = write(tmp_path, "flux.2-dev", "2xRTX-4090", f"[plan]\nguidance = {guidance}")
    assert run(["predict", file]) == 2
    assert (
        "a.toml:2: field 'model.name': unknown diffusion model 'flux.2-dev'; nearest: flux" in capsys.readouterr().err
    )


def test_an_unknown_offload_is_refused() -> None:
    with pytest.raises(WorkloadError, match="needs one of none, model, layers"):
        replace(ASKED, offload="disk")


def test_a_video_that_is_decoded_in_tiles_fits_where_it_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """HunyuanVideo makes 129 frames of 720p on one device of 80 GB; its decoder's layers at once would be 114 GiB."""
    scenario = tmp_path / "film.toml"
    scenario.write_text(
        '[model]\nname = "hunyuan-video"\n[cluster]\nname = "1xA100-SXM-80GB"\n[workload]\ntask = "diffusion"\n'
        'width = 1280\nheight = 720\nframes = 129\nsteps = 50\nbatch = 1\nprecision = "bf16"\n',
        encoding="utf-8",
    )
    assert run(["predict", str(scenario)]) == 0
    assert "the decoder of a video works in tiles" in capsys.readouterr().out.replace("\n", " ")
