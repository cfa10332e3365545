"""The judge of a candidate kernel: every case is asked several times, and each answer is compared and watched."""

from __future__ import annotations

import random
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ridgeline.errors import InputError
from ridgeline.judge.cases import Case, cases
from ridgeline.judge.compare import Mismatch, compare
from ridgeline.judge.guards import Snapshot, quiet_threads, storages, watched
from ridgeline.judge.kernel_file import KernelFile
from ridgeline.judge.recorder import Recorder, poison_allocator
from ridgeline.judge.verdict import Finding

_KEPT = 8  # earlier outputs that are kept alive, so that shared memory shows
_CHEAP = frozenset(
    f"aten.{name}"
    for name in [
        "empty",
        "view",
        "reshape",
        "t",
        "transpose",
        "permute",
        "clone",
        "copy_",
        "slice",
        "select",
        "detach",
        "expand",
        "unsqueeze",
        "squeeze",
        "alias",
        "zeros",
        "ones",
        "_to_copy",
        "_unsafe_view",
        "as_strided",
        "empty_like",
        "zeros_like",
        "ones_like",
        "full",
        "fill_",
        "lift_fresh",
        "split",
        "split_with_sizes",
        "chunk",
        "unbind",
        "contiguous",
        "arange",
        "empty_strided",
        "new_empty",
        "new_zeros",
        "zero_",
        "cat",
        "stack",
    ]
)


@dataclass(kw_only=True)
class Judge:
    """Asks one candidate; `findings` holds the first of each name."""

    kernel: KernelFile
    snapshot: Snapshot
    device: str = "cpu"
    findings: dict[str, Finding] = field(default_factory=dict)
    asked: int = 0
    remarks: list[str] = field(default_factory=list)
    _kept: deque[tuple[Any, Any]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _right: deque[Any] = field(default_factory=lambda: deque(maxlen=_KEPT))  # outputs that were right for their inputs
    _operators: dict[str, tuple[list[str], list[str]]] = field(default_factory=dict)

    def note(self, name: str, detail: str) -> None:
        """Adds a finding, the first of its name."""
        self.findings.setdefault(name, Finding(name=name, detail=detail))

    def ask_all(self) -> None:
        """Every case of the file; a candidate that raises thrice is asked no more."""
        self.check_patches("when its file was executed")
        raised = 0
        for case in cases(self.kernel, self.device):
            raised += not self.ask(case)
            self.check_patches(case.title)
            if raised >= 3:
                break
        self._check_later("after its calls had returned")
        self._check_content()

    def check_patches(self, when: str) -> None:
        """Notes functions that were replaced, and puts them back."""
        names = self.snapshot.replaced()
        if names:
            self.note("patched", f"{', '.join(names[:4])}, {when}")

    def ask(self, case: Case) -> bool:
        """One case: a plain call, a watched one, and one at the same addresses with other contents."""
        self.asked += 1
        exact, own = answers(self.kernel, case)
        if not all(bool(one.isfinite().all()) for one in own if one.is_floating_point()):
            self.remarks.append(f"{case.title}: left out, the reference overflows there")
            return True
        poison_allocator(own)
        given = case.build()
        plain = self._call(case, given)
        if plain is None:
            return False
        self._judge(case, given, plain, exact, own)
        self._watched(case, exact, own)
        if case.distribution == "random" and not self.kernel.mutates:
            self._same_place(case, given)
        return True

    def _call(self, case: Case, given: Sequence[Any]) -> list[Any] | None:
        """The outputs of one plain call; what it did to inputs, generators and threads is noted."""
        pristine = [one.clone() if isinstance(one, torch.Tensor) else one for one in given]
        torch.default_generator.manual_seed(secrets.randbits(32))
        random.seed(secrets.randbits(32))
        states = (torch.get_rng_state(), random.getstate())
        with quiet_threads() as left:
            try:
                made = outputs(self.kernel.candidate(*given))
                at_return = [one.clone() if type(one) is torch.Tensor else one for one in made]
            except Exception as error:
                self.note("raises", f"{case.title}: {type(error).__name__}: {str(error)[:200]}")
                return None
        if left:
            self.note("lazy", f"{case.title}: thread {left[0]} still ran after the call returned")
        if not torch.equal(states[0], torch.get_rng_state()) or states[1] != random.getstate():
            self.note("random", f"{case.title}: the state of a global generator changed")
        for place, (now, before) in enumerate(zip(given, pristine, strict=True)):
            if place not in self.kernel.mutates and isinstance(now, torch.Tensor) and not _same(now, before):
                self.note("mutates", f"{case.title}: input {place} was changed")
        return self._checked_kinds(case, given, made, at_return)

    def _checked_kinds(
        self, case: Case, given: Sequence[Any], made: list[Any], at_return: list[Any]
    ) -> list[Any] | None:
        for place, one in enumerate(made):
            if type(one) is not torch.Tensor:
                self.note("not a tensor", f"{case.title}: output {place} is a {type(one).__name__}")
                return None
        self._check_later(case.title)
        inside = storages([one for one in given if isinstance(one, torch.Tensor)])
        earlier = storages([one for one, _ in self._kept])
        shared = self._reference_shares(case)
        for place, one in enumerate(made):
            address = one.untyped_storage().data_ptr()
            if address in inside and not shared and not self.kernel.mutates:
                self.note("aliases", f"{case.title}: output {place} shares memory with input {inside[address]}")
            elif address in earlier and address not in inside:
                self.note("aliases", f"{case.title}: output {place} shares memory with an earlier output")
        self._kept.extend(zip(made, at_return, strict=True))
        return at_return

    def _reference_shares(self, case: Case) -> bool:
        given = case.build()
        inside = storages([one for one in given if isinstance(one, torch.Tensor)])
        return any(one.untyped_storage().data_ptr() in inside for one in outputs(self.kernel.reference(*given)))

    def _check_later(self, when: str) -> None:
        """Notes earlier outputs that are no longer what they were when their call returned."""
        for now, then in self._kept:
            if not _same(now, then):
                later = "an output changed after its call had returned"
                self.note("lazy" if "aliases" not in self.findings else "aliases", f"{when}: {later}")

    def _judge(self, case: Case, given: Sequence[Any], made: list[Any], exact: list[Any], own: list[Any]) -> None:
        mismatch = self.compare(case, given, made, exact, own)
        if mismatch is None:
            self._right.extend(made)
            return
        name, detail = mismatch.name, f"{case.title}: {mismatch.detail}"
        if name in ("wrong", "nan", "precision"):
            if self._depends_on_fill(case):
                name = "stale"
            elif any(_same(one, earlier) for one in made for earlier in self._right):
                name = "cached"
            elif not self._right and all(one.numel() > 1 and bool((one == one.reshape(-1)[0]).all()) for one in made):
                name = "constant"
        self.note("wrong" if name == "nan" else name, detail)

    def compare(
        self, case: Case, given: Sequence[Any], made: list[Any], exact: list[Any], own: list[Any]
    ) -> Mismatch | None:
        """The first mismatch of one call's outputs, or None."""
        if len(made) != len(own):
            return Mismatch(name="shape", detail=f"{len(made)} outputs, the reference has {len(own)}")
        read = sum(one.numel() for one in given if isinstance(one, torch.Tensor))
        for one, right, mine in zip(made, exact, own, strict=True):
            if one.shape != mine.shape:
                return Mismatch(name="shape", detail=f"shape {tuple(one.shape)}, needs {tuple(mine.shape)}")
            if one.dtype is not mine.dtype:
                return Mismatch(name="dtype", detail=f"{one.dtype}, needs {mine.dtype}")
            if one.numel() == 0:
                continue
            length = max(1.0, read / one.numel())
            tolerance = self.kernel.tolerances.get(case.dtype)
            found = compare(one.to(mine.device), right, mine, length=length, tolerance=tolerance)
            if found is not None:
                return found
        return None

    def _depends_on_fill(self, case: Case) -> bool:
        """Whether results change with what fresh memory holds."""
        runs = []
        for fill in (3.0, 7.0):
            try:
                with Recorder(fill):
                    runs.append([one.clone() for one in outputs(self.kernel.candidate(*case.build()))])
            except Exception:
                return False
        return any(not _same(one, other) for one, other in zip(*runs, strict=True))

    def _watched(self, case: Case, exact: list[Any], own: list[Any]) -> None:
        """The same case under the recorder and the profile."""
        given = case.build()
        recorder = Recorder()
        try:
            with watched(self.kernel.reference) as found, recorder:
                made = outputs(self.kernel.candidate(*given))
                made = [one.clone() for one in made]
        except Exception as error:
            self.note("raises", f"{case.title}, watched: {type(error).__name__}: {str(error)[:200]}")
            return
        self._judge(case, given, made, exact, own)
        for name, detail in found.items():
            self.note(name, f"{case.title}: {detail}")
        if recorder.random is not None:
            self.note("random", f"{case.title}: {recorder.random} was used")
        again = case.build()
        with Recorder() as theirs:
            self.kernel.reference(*again)
        used = self._forbidden(recorder.operators, theirs.operators)
        if used:
            self.note("forbidden", f"{case.title}: {', '.join(used[:3])}")
        if case.size == self.kernel.sizes[0] and case.dtype == self.kernel.dtypes[0]:
            self._operators[case.distribution] = (recorder.operators, theirs.operators)

    def _forbidden(self, used: list[str], reference: list[str]) -> list[str]:
        if self.kernel.forbid is True:
            banned = set(reference) - _CHEAP
        else:
            banned = {f"aten.{one.removeprefix('aten.')}" for one in self.kernel.forbid or ()}
        return [one for one in dict.fromkeys(used) if one in banned]

    def _check_content(self) -> None:
        """Notes a candidate that runs other operators on special contents where the reference does not."""
        usual = self._operators.get("random")
        if usual is None or self.kernel.content_dependent:
            return
        for distribution, (mine, theirs) in self._operators.items():
            if not distribution.startswith("special") and mine != usual[0] and theirs == usual[1]:
                self.note("content", f"{distribution}: {len(mine)} operators, {len(usual[0])} on random contents")
                return

    def _same_place(self, case: Case, given: Sequence[Any]) -> None:
        """Asks again at the same addresses after their contents changed."""
        other = Case(**{**vars(case), "seed": secrets.randbits(48)})
        fresh = other.build()
        for old, new in zip(given, fresh, strict=True):
            if isinstance(old, torch.Tensor):
                if old.shape != new.shape:
                    return
                old.copy_(new)
            elif old != new:
                return
        exact, own = answers(self.kernel, other)
        made = self._call(other, given)
        if made is not None:
            self._judge(other, given, made, exact, own)


def outputs(made: Any) -> list[Any]:
    """What a call returned, as a list."""
    return list(made) if isinstance(made, tuple | list) else [made]


def answers(kernel: KernelFile, case: Case) -> tuple[list[Any], list[Any]]:
    """The reference of a case in float64, and in the case's own number format."""
    wide = [
        one.to(torch.float64) if isinstance(one, torch.Tensor) and one.is_floating_point() else one
        for one in case.build()
    ]
    try:
        exact, own = outputs(kernel.reference(*wide)), outputs(kernel.reference(*case.build()))
        exact, own = ([one.clone() for one in group] for group in (exact, own))
    except Exception as error:
        message = f"the reference raised {type(error).__name__} for {case.title}: {error}"
        raise InputError(message, file=kernel.path, field="reference") from None
    return exact, own


def _same(one: Any, other: Any) -> bool:
    """Whether two tensors hold the same bits, NaN included."""
    if one.shape != other.shape or one.dtype is not other.dtype:
        return False
    raw = (part.contiguous().reshape(-1).view(torch.uint8) for part in (one, other))
    return bool(torch.equal(*raw))
