"""A kernel file: a person's own Python with a reference, candidates and inputs. Executed only to be judged."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, UnknownNameError

DISTRIBUTIONS = ("zeros", "ones", "large", "tiny", "negative", "mixture", "spike")
_DEFAULT_SIZES = (64, 1024)


@dataclass(frozen=True, kw_only=True)
class KernelFile:
    """What a kernel file says; docs/measure.md tells each name. `candidate` is what is judged."""

    path: str
    name: str
    reference: Callable[..., Any]
    candidate: Callable[..., Any]
    inputs: Callable[..., tuple[Any, ...]]
    sizes: tuple[Any, ...]
    odd_sizes: tuple[Any, ...] | None
    dtypes: tuple[str, ...]
    tolerances: Mapping[str, tuple[float, float]]
    distributions: tuple[str, ...]
    special: Callable[..., Any] | None
    forbid: tuple[str, ...] | bool
    mutates: frozenset[int]
    content_dependent: bool
    flop: Callable[[Any], float] | None
    bytes: Callable[[Any], float] | None


def load_kernel(path: str, candidate: str = "candidate") -> KernelFile:
    """Executes a kernel file and reads what it defines; raises InputError for what cannot be judged."""
    names = _execute(path)
    for needed in ("reference", "inputs"):
        if not callable(names.get(needed)):
            raise InputError(f"defines no function '{needed}'; docs/measure.md shows a kernel file", file=path)
    if candidate not in names:
        known = [name for name, value in names.items() if callable(value) or isinstance(value, str)]
        raise UnknownNameError("candidate", candidate, known, hint=f"name a function of {path}")
    sizes = tuple(names.get("SIZES", _DEFAULT_SIZES))
    if not sizes:
        raise InputError("is empty, needs at least one size", file=path, field="SIZES")
    distributions = tuple(names.get("DISTRIBUTIONS", DISTRIBUTIONS))
    for name in distributions:
        if name not in DISTRIBUTIONS:
            raise UnknownNameError("distribution", str(name), DISTRIBUTIONS, hint=f"in DISTRIBUTIONS of {path}")
    forbid = names.get("FORBID", ())
    return KernelFile(
        path=path,
        name=candidate,
        reference=names["reference"],
        candidate=_callable(names[candidate], candidate, path),
        inputs=names["inputs"],
        sizes=sizes,
        odd_sizes=tuple(names["ODD_SIZES"]) if "ODD_SIZES" in names else None,
        dtypes=tuple(str(one).removeprefix("torch.") for one in names.get("DTYPES", ("float32",))),
        tolerances=_tolerances(names.get("TOLERANCES", {}), path),
        distributions=distributions,
        special=names.get("SPECIAL"),
        forbid=forbid if isinstance(forbid, bool) else tuple(forbid),
        mutates=frozenset(names.get("MUTATES", ())),
        content_dependent=bool(names.get("CONTENT_DEPENDENT", False)),
        flop=names.get("flop"),
        bytes=names.get("bytes"),
    )


def _execute(path: str) -> dict[str, Any]:
    file = Path(path)
    if not file.is_file():
        raise InputError("no such file", file=path)
    spec = importlib.util.spec_from_file_location(f"ridgeline_kernel_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise InputError("is no Python file; its name must end in .py", file=path)
    module = importlib.util.module_from_spec(spec)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "triton":
            raise InputError("needs Triton, which is not installed here; pip install triton", file=path) from None
        raise InputError(f"needs the module '{error.name}', which is not installed", file=path) from None
    except SyntaxError as error:
        raise InputError(f"is not Python: {error.msg}", file=path, line=error.lineno) from None
    except Exception as error:
        raise InputError(f"raised {type(error).__name__} when executed: {error}", file=path) from None
    return dict(vars(module))


def _callable(found: Any, name: str, path: str) -> Callable[..., Any]:
    """The candidate as a function; a text is C++ source that defines a function of the same name."""
    if callable(found):
        return found  # type: ignore[no-any-return]
    if not isinstance(found, str):
        raise InputError("is neither a function nor C++ source", file=path, field=name)
    return compile_cpp(found, name, path)


def compile_cpp(source: str, name: str, path: str) -> Callable[..., Any]:
    """The function `name` of C++ source, compiled by PyTorch's own builder."""
    from shutil import which

    missing = [tool for tool in ("c++", "ninja") if which(tool) is None]
    if missing:
        raise InputError(f"is C++ source, and {' and '.join(missing)} is not installed here", file=path, field=name)
    from torch.utils.cpp_extension import load_inline

    try:
        module = load_inline(
            name=f"ridgeline_{Path(path).stem}_{name}", cpp_sources=source, functions=[name], verbose=False
        )
    except Exception as error:
        lines = [line for line in str(error).splitlines() if "error" in line] or [str(error)]
        raise InputError(f"C++ does not compile: {lines[0][:300]}", file=path, field=name) from None
    built: Callable[..., Any] = getattr(module, name)
    return built


def _tolerances(given: Any, path: str) -> dict[str, tuple[float, float]]:
    try:
        return {str(dtype).removeprefix("torch."): (float(rtol), float(atol)) for dtype, (rtol, atol) in given.items()}
    except (AttributeError, TypeError, ValueError):
        message = "needs a pair of relative and absolute tolerance by dtype, e.g. {'float32': (1e-5, 1e-6)}"
        raise InputError(message, file=path, field="TOLERANCES") from None
