"""Machine profiles: what `ridgeline calibrate` found on one machine, in one JSON file that is whole or refused."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from ridgeline.errors import ClusterError, InputError
from ridgeline.facts.clusters import carbon_intensity, pue
from ridgeline.facts.fits import BANDS_S, CallFit, Fit, fits, register_calls, register_own
from ridgeline.facts.records import SHARE, Accelerator, Cluster, Evidence, Fact, Host, Tier
from ridgeline.facts.user_files import PROFILE, read_user_file

FORMAT = 1
AGAIN = "run `ridgeline calibrate --force` again"
_OWN_COPY = "own_copy_memory_share_"


@dataclass(frozen=True, kw_only=True)
class BenchmarkRow:
    """One benchmark row: median and best time of repeats [s], and `spread`, half their 10 to 90 % range over it [1]."""

    kind: str  # gemm, prefill, decode, stream, copy, launch, collective, disk, reference, ...
    form: str
    sizes: Mapping[str, float]
    seconds: float
    best_s: float
    spread: float
    repeats: int
    flop: float = 0.0
    bytes: float = 0.0
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """How steady the machine was: spread of repeats over all rows, and how far a reference kernel moved [1]."""

    spread_median: float
    spread_p90: float
    drift: float  # slowest over fastest median of the reference, less one
    reference_s: tuple[float, ...]  # before, in the middle, after
    load: float = 0.0  # processes that ran already when it began, a minute's mean


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One machine as it was measured: `count` devices of one kind, their host and links, fits, rows and conditions."""

    kind: str  # cpu, cuda, mps
    count: int
    date: str
    budget_s: float
    spent_s: float
    machine: Mapping[str, str]  # who it is, see `this_machine`
    versions: Mapping[str, str]
    accelerator: Accelerator
    host: Host
    tiers: tuple[Tier, ...]
    noise: Noise
    fits: tuple[Fit, ...] = ()
    calls: tuple[CallFit, ...] = ()
    samples: tuple[BenchmarkRow, ...] = ()
    left_out: tuple[str, ...] = field(default=())
    energy: str = ""


def default_path() -> Path:
    """Where the profile of this machine lies: the platform's folder for a user's data."""
    home = Path.home()
    if platform.system() == "Windows":
        folder = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif platform.system() == "Darwin":
        folder = home / "Library" / "Application Support"
    else:
        given = os.environ.get("XDG_DATA_HOME", "")
        folder = Path(given) if os.path.isabs(given) else home / ".local" / "share"
    return folder / "ridgeline" / "profiles" / "here.json"


def this_machine() -> dict[str, str]:
    """What tells this machine from others, without asking any device: processor, cores, memory, system."""
    return {
        "processor": _processor(),
        "processors": str(os.cpu_count() or 1),
        "memory_gib": str(round(memory_bytes() / 2**30)),
        "system": f"{platform.system()} {platform.machine()}",
    }


def memory_bytes() -> float:
    """Memory that the system has [byte]; 0 where it does not tell."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return 0.0


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine()
    named = (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def fingerprint(words: Mapping[str, str]) -> str:
    """A short hash of what tells a machine from others."""
    return hashlib.sha256(json.dumps(dict(words), sort_keys=True).encode()).hexdigest()[:16]


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Profile)


def write_profile(path: Path, profile: Profile) -> None:
    """The profile as a file that appears whole or not at all, and survives a loss of power once this returns."""
    body = json.loads(json.dumps(_adapter().dump_python(profile, mode="json"), allow_nan=False))
    text = json.dumps({"format": FORMAT, "checksum": _checksum(body), "profile": body}, indent=1) + "\n"
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, path)
        sync_folder(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise InputError(f"cannot be written: {error.strerror or error}", file=str(path)) from None


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder survive a loss of power, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        return
    finally:
        os.close(handle)


def _checksum(body: object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_profile(path: str | Path) -> Profile:
    """The profile of a file; InputError with file and field for one that is damaged, edited or of another format."""
    return _read(Path(path))[0]


def _read(path: Path) -> tuple[Profile, str]:
    file = str(path)
    try:
        whole = json.loads(read_user_file(path, PROFILE).raw.decode("utf-8-sig"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is no JSON: {error}; {AGAIN}", file=file) from None
    if not isinstance(whole, dict):
        raise InputError(f"holds no machine profile; {AGAIN}", file=file)
    if whole.get("format") != FORMAT:
        raise InputError(f"is {str(whole.get('format'))[:20]}, needs {FORMAT}; {AGAIN}", file=file, field="format")
    body, told = whole.get("profile"), whole.get("checksum")
    if not isinstance(body, dict):
        raise InputError(f"is missing; {AGAIN}", file=file, field="profile")
    found = _checksum(body)
    if told != found:
        raise InputError(
            f"is {str(told)[:16]}, the content's is {found[:16]}: damaged or edited; {AGAIN}",
            file=file,
            field="checksum",
        )
    return _checked(body, file), found


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no number")


def _checked(body: Mapping[str, Any], file: str) -> Profile:
    from pydantic import ValidationError

    try:
        profile: Profile = _adapter().validate_python(body)
    except ValidationError as caught:
        first = caught.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in ("profile", *first["loc"]))
        raise InputError(f"{first['msg'][:100]}; {AGAIN}", file=file, field=place) from None
    part, host = profile.accelerator, profile.host
    rates = {
        "count": profile.count,
        "accelerator.vector_flop_per_s": part.vector_flop_per_s,
        "accelerator.memory_bytes": part.memory_bytes,
        "accelerator.memory_bytes_per_s": part.memory_bytes_per_s,
        "host.devices": host.devices,
        "host.dram_bytes": host.dram_bytes,
        **{f"accelerator.peak_flop_per_s.{name}": rate for name, rate in part.peak_flop_per_s.items()},
        **{f"accelerator.sustained.{name}": fact.value for name, fact in part.sustained.items()},
        **{f"tiers.{index}.bytes_per_s": tier.bytes_per_s for index, tier in enumerate(profile.tiers)},
        "tiers": len(profile.tiers),
    }
    for name, value in rates.items():
        if not 0 < value < float("inf"):
            raise InputError(f"is {value:g}, needs a number above 0; {AGAIN}", file=file, field=f"profile.{name}")
    for index, one in enumerate(profile.calls):
        if not all(0 < value < float("inf") for value in (*one.values.values(), one.low, one.high)):
            raise InputError(f"holds no time above 0; {AGAIN}", file=file, field=f"profile.calls.{index}.values")
    for index, fit in enumerate(profile.fits):
        known = fits(fit.family)[:1]
        for name in ("low", "high", "shared"):
            if len(getattr(fit, name)) != len(BANDS_S) + 1:
                told = f"has {len(getattr(fit, name))} numbers, needs one for each of {len(BANDS_S) + 1} bands of time"
                raise InputError(f"{told}; {AGAIN}", file=file, field=f"profile.fits.{index}.{name}")
        if not all(abs(value) < float("inf") for value in fit.values.values()):
            raise InputError(f"holds no number; {AGAIN}", file=file, field=f"profile.fits.{index}.values")
        lacking = set(known[0].values) - set(fit.values) if known else {f"any parameter of '{fit.family[:40]}'"}
        if lacking:
            place = f"profile.fits.{index}.values"
            raise InputError(f"lacks {min(lacking)}, made by another version; {AGAIN}", file=file, field=place)
    return profile


def profile_cluster(path: str, count: int = 1) -> Cluster:
    """`count` devices of a profiled machine; the empty path is this machine's own profile.

    Of a processor, `count` local ranks share the cores, so each has its part of rates and memory. Raises
    ClusterError without a profile, for another machine's under the name 'here', or for more devices than it has.
    """
    where = Path(path) if path else default_path()
    if not path and not where.exists():
        raise ClusterError(f"no profile of this machine at {where}; run `ridgeline calibrate` first")
    profile, checksum = _read(where)
    if not path:
        _is_here(profile, where)
    word = f"profile:{path}" if path else "here"
    most = int(profile.accelerator.sm_count or 1) if profile.kind == "cpu" else profile.count
    if count > most:
        what = "cores for local ranks" if profile.kind == "cpu" else "devices"
        raise ClusterError(f"'{count}x{word}' asks for {count} of {most} {what}; write {most}x{word} or less")
    part = replace(profile.accelerator, name=f"{profile.accelerator.name} ({checksum[:6]})")
    known = tuple(replace(fit, device=part.name) for fit in profile.fits)
    rung = dict.fromkeys((fit.family for fit in known), Evidence.HERE)
    if profile.kind == "cpu" and count > 1:
        whole, part = part, _part_of(part, count)
        known = tuple(_fit_of(fit, part.name, _share(whole, "triad", count)) for fit in known)
        rung = {name: seen if name == "collective" else Evidence.DERIVED for name, seen in rung.items()}
    register_own(part.name, known, rung)
    register_calls(part.name, profile.calls, count)
    devices = count if profile.kind == "cpu" else max(count, profile.count)
    return Cluster(
        name=f"{count}x{word}" if count > 1 else word,
        accelerator=part,
        count=count,
        tiers=profile.tiers,
        host=replace(profile.host, devices=devices),
        pue=pue(),
        carbon_kg_per_j=carbon_intensity(),
    )


def _is_here(profile: Profile, path: Path) -> None:
    for key, now in this_machine().items():
        then = profile.machine.get(key, "")
        if then != now:
            raise ClusterError(
                f"the profile {path} is of another machine ({key} '{then}', here '{now}'); {AGAIN},"
                f" or name it: --on profile:{path}"
            )


def _part_of(part: Accelerator, count: int) -> Accelerator:
    """One of `count` equal parts of a processor: so much of its cores, rates and memory."""

    parts = {unit: _share(part, name, count) for unit, name in (("FLOP/s", "product"), ("byte/s", "triad"))}
    product, stream = parts["FLOP/s"], parts["byte/s"]

    def shared(fact: Fact) -> Fact:
        if fact.unit not in parts:
            return fact
        words = f"{fact.conditions}; one of {count} equal parts"
        return replace(fact, value=fact.value * parts[fact.unit], conditions=words, evidence=Evidence.DERIVED)

    return replace(
        part,
        name=f"{part.name} / {count}",
        peak_flop_per_s={name: rate * product for name, rate in part.peak_flop_per_s.items()},
        vector_flop_per_s=part.vector_flop_per_s * product,
        memory_bytes=part.memory_bytes / count,
        memory_bytes_per_s=part.memory_bytes_per_s * stream,
        l2_bytes=None if part.l2_bytes is None else part.l2_bytes / count,
        sm_count=max(1, (part.sm_count or 1) // count),
        tdp_w=None if part.tdp_w is None else part.tdp_w / count,
        sustained={name: shared(fact) for name, fact in part.sustained.items()},
        facts={name: shared(fact) for name, fact in part.facts.items()},
    )


def _share(part: Accelerator, name: str, count: int) -> float:
    """What one of `count` ranks gets of a rate while all compute [1]: measured, else an equal part."""
    known = part.sustained.get(f"{SHARE}.{name}.{count}")
    return 1.0 / count if known is None else known.value


def _fit_of(fit: Fit, device: str, stream: float) -> Fit:
    """A fit for one part of a processor; the rate at which collectives copy was measured with all parts at once."""
    values = dict(fit.values)
    if _OWN_COPY in values:
        values[_OWN_COPY] /= stream
    return replace(fit, device=device, values=values)
