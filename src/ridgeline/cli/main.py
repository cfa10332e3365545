"""The command `ridgeline`: reads words, asks the rooms below, prints the answer.

Exit codes: 0 answered, 1 asked well but impossible (nothing fits), 2 the input cannot be used,
70 a defect of Ridgeline itself. What takes time to import is imported when needed: `--help` stays under 0.3 s.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Annotated, Any

import typer

from ridgeline.cli.commands import SETTINGS, Commands, Misused, command
from ridgeline.cli.flags import LIMIT_FIELDS, STATED_FIELDS, Grouped, with_flags
from ridgeline.cli.options import (
    PLAN_EXAMPLES,
    PREDICT_EXAMPLES,
    RUN_FLAGS,
    SIMULATE_EXAMPLES,
    Blind,
    Evidence,
    Json,
    Kinds,
    Named,
    On,
    OperatorEvidence,
    OperatorRung,
    Region,
    Rung,
    Serve,
    Subject,
    Train,
)
from ridgeline.cli.refusals import Counted, defect, misused, print_refusal, refusal
from ridgeline.errors import InputError, RidgelineError, printable
from ridgeline.scenario.fields import WORKLOAD_FIELDS
from ridgeline.scenario.serving_fields import DEPLOYMENT_FIELDS, HOST_FIELDS, OFFLOAD_FIELDS, TRAFFIC_FIELDS

MISUSED, STOPPED = 2, 130
DEFECT = 70  # EX_SOFTWARE of sysexits.h
_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS})
"""Why an answer cannot be written that is no fault of the program."""
_JSON = "--json"

app = typer.Typer(
    name="ridgeline",
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=SETTINGS,
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"ridgeline {version('ridgeline')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Predicts, plans and explains how a deep-learning workload will run on a machine, before anyone rents it."""


@command(
    "plan",
    cls=Grouped,
    short_help="Find the best plan for a workload.",
    epilog=PLAN_EXAMPLES,
    flags=with_flags(
        {
            "Training: the workload": WORKLOAD_FIELDS,
            "Training: the plan; what is given is kept": STATED_FIELDS,
            "Training: bounds of the search": LIMIT_FIELDS,
            "Serving: traffic and objective": TRAFFIC_FIELDS,
            "Serving: the deployment; what is given is kept": DEPLOYMENT_FIELDS,
            "Serving: weights in host memory": HOST_FIELDS,
        }
    ),
)
def plan_command(
    subject: Subject,
    on: On = None,
    region: Region = None,
    train: Train = True,
    serve: Serve = False,
    quantize: Annotated[
        bool, typer.Option("--quantize", help="with --serve: also try weights and caches narrower than the model's")
    ] = False,
    pools: Annotated[
        bool, typer.Option("--pools/--no-pools", help="with --serve: also try prefill and decode pools")
    ] = True,
    min_devices: Annotated[
        bool, typer.Option("--min-devices", help="with --serve: the fewest devices that keep to the objective")
    ] = False,
    rent: Annotated[
        str | None, typer.Option("--rent", metavar="OFFERS", help="with --serve: rent the cheapest of H100-SXM=16,L40S")
    ] = None,
    evidence: Rung = Evidence.MEASURED,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="try every schedule, sharding and micro-batch")
    ] = False,
    top: Annotated[int, typer.Option("--top", min=1, max=100, help="plans to show")] = 5,
    as_json: Json = False,
    **words: Any,
) -> None:
    """Find the best plan for a workload on a cluster; flags of a plan (--tp 8) are kept as given."""
    given_of_serving = {"--quantize": quantize, "--no-pools": not pools, "--min-devices": min_devices, "--rent": rent}
    for flag, said in given_of_serving.items():
        if said and not serve:
            raise InputError("is a word of serving; add --serve, or leave it out", field=flag)
        if said and rent is not None and flag != "--rent":
            raise InputError("--rent chooses machines by their price alone; leave one of them out", field=flag)
    if serve and exhaustive:
        raise InputError("is a word of training; leave it out, or --serve", field="--exhaustive")
    if rent is not None and on is not None:
        raise InputError("--rent chooses among its own offers; leave one of them out", field="--on")
    words["region"] = region
    if serve and rent is not None:
        from ridgeline.cli.deploying import rent_serving
        from ridgeline.cli.simulating import measured_only

        measured_only(evidence.value, "--rent")
        rent_serving(subject, words, rent, as_json=as_json)
        return
    if serve:
        from ridgeline.cli.deploying import plan_serving

        plan_serving(
            subject, on, words, quantize=quantize, pools=pools, min_devices=min_devices, evidence=evidence.value,
            top=top, as_json=as_json,
        )  # fmt: skip
        return
    from ridgeline.cli.planning import plan

    plan(subject, on, words, evidence=evidence.value, exhaustive=exhaustive, top=top, as_json=as_json)


@command(
    "predict",
    cls=Grouped,
    short_help="Explain one plan to the operator.",
    epilog=PREDICT_EXAMPLES,
    flags=with_flags({**RUN_FLAGS, "Serving: weights in host memory": OFFLOAD_FIELDS}),
)
def predict_command(
    subject: Subject,
    on: On = None,
    region: Region = None,
    train: Train = True,
    serve: Serve = False,
    evidence: Rung = Evidence.MEASURED,
    trace: Annotated[
        str | None, typer.Option("--trace", metavar="FILE", help="write the timeline as a Chrome trace, for Perfetto")
    ] = None,
    as_json: Json = False,
    **words: Any,
) -> None:
    """Explain one plan to the layer: time, memory, energy, money, and what limits it."""
    words["region"] = region
    if serve:
        from ridgeline.cli.simulating import predict_batch

        if trace is not None:
            raise InputError("writes the timeline of a training step; leave it out, or --serve", field="--trace")
        predict_batch(subject, on, words, evidence=evidence.value, as_json=as_json)
        return
    from ridgeline.scenario.sampling import names_sampling

    if names_sampling(subject):
        from ridgeline.cli.sampling import predict_sampling

        predict_sampling(subject, on, words, as_json=as_json)
        return
    from ridgeline.cli.planning import predict

    predict(subject, on, words, evidence=evidence.value, trace=trace, as_json=as_json)


@command(
    "simulate",
    cls=Grouped,
    short_help="Replay traffic on a deployment.",
    epilog=SIMULATE_EXAMPLES,
    flags=with_flags({"Traffic and objective": TRAFFIC_FIELDS, "Deployment": DEPLOYMENT_FIELDS}),
)
def simulate_command(
    subject: Subject,
    on: On = None,
    region: Region = None,
    as_json: Json = False,
    **words: Any,
) -> None:
    """Replay a trace, a rate or users on a deployment: latencies by quantile, goodput, cache, energy, money."""
    words["region"] = region
    from ridgeline.cli.simulating import simulate

    simulate(subject, on, words, as_json=as_json)


@command("op", short_help="Price one operator on some machines.")
def op_command(
    kind: Annotated[str, typer.Argument(help="gemm, prefill, decode, mla_decode, experts, stream, all_reduce, ...")],
    shape: Annotated[str, typer.Argument(help="4096x4096x14336, 4x4096x32x8x128, or a size such as 256MiB")],
    dtype: Annotated[str, typer.Argument(help="bf16 (else fp16, fp32), fp8, fp8_block, nvfp4, int4_wo, ...")] = "",
    on: Annotated[
        str, typer.Option("--on", metavar="MACHINE[,MACHINE]", help="e.g. H100-SXM,MI300X or 8xH100-SXM")
    ] = "H100-SXM",
    full: Annotated[bool, typer.Option("--full", help="attention without the causal mask")] = False,
    backward: Annotated[bool, typer.Option("--backward", help="attention's backward")] = False,
    window: Annotated[int, typer.Option("--window", min=0, help="sliding window of attention [token]; 0 none")] = 0,
    kv_dtype: Annotated[str, typer.Option("--kv-dtype", help="format of the KV cache, if narrower: fp8")] = "",
    skew: Annotated[float, typer.Option("--skew", min=0, max=4, help="power law of rows per expert; 0 balanced")] = 0.0,
    library: Annotated[
        str, typer.Option("--library", metavar="ENGINE [VERSION]", help="whose kernels: vllm, sglang, trtllm, nccl")
    ] = "",
    evidence: OperatorRung = OperatorEvidence.MEASURED,
    picture: Annotated[
        str | None, typer.Option("--picture", metavar="FILE.svg", help="draw the roofline of the machines")
    ] = None,
    as_json: Json = False,
) -> None:
    """Price one product, attention, experts, stream of bytes or collective: time, rate, bytes, what binds it."""
    from ridgeline.cli.operating import operate

    options = {"causal": not full, "backward": backward, "window": window, "cache_dtype": kv_dtype, "skew": skew}
    operate(
        kind, shape, dtype, on, {**options, "library": library, "evidence": evidence.value}, picture=picture,
        as_json=as_json,
    )  # fmt: skip


@command("catalog", short_help="Show facts with source and evidence.")
def catalog_command(kind: Kinds, name: Named = None, as_json: Json = False) -> None:
    """Show models, accelerators, clusters or processors of hosts: facts with source and evidence."""
    from ridgeline.cli.catalog import catalog

    catalog(kind.value, name, as_json=as_json)


@command("techniques", short_help="Show techniques: optimizers, schedules, yours.")
def techniques_command(name: Named = None, as_json: Json = False) -> None:
    """Show techniques, built in or of an installed package: what each does, its parameters, seams and sources."""
    from ridgeline.cli.techniques import techniques

    techniques(name, as_json=as_json)


@command("check", short_help="Compare predictions with measurements.")
def check_command(
    table: Annotated[str, typer.Argument(metavar="FILE.tsv", help="table of measurements, one header line")],
    evidence: OperatorRung = OperatorEvidence.MEASURED,
    blind: Blind = False,
    as_json: Json = False,
) -> None:
    """Predict every row of a table of measurements and say how wrong it was."""
    from ridgeline.cli.checking import check

    check(table, evidence=evidence.value, blind=blind, as_json=as_json)


@command("fit", short_help="Refit the mechanisms from public operator tables.")
def fit_command(
    out: Annotated[str, typer.Option("--out", metavar="FOLDER", help="where the tables of fits are written")] = "fits",
    families: Annotated[list[str] | None, typer.Option("--family", help="only this family; may be repeated")] = None,
    processes: Annotated[int, typer.Option("--processes", min=1, max=256, help="fits at a time")] = 2,
    rungs: Annotated[
        bool, typer.Option("--rungs", help="judge the shipped fits on rows that no fit used, instead of refitting")
    ] = False,
    as_json: Json = False,
) -> None:
    """Refit every device, operator family and library version from the public tables of ridgeline[measured]."""
    from ridgeline.cli.fitting import fit

    fit(out, tuple(families or ()), processes=processes, rungs=rungs, as_json=as_json)


@command("calibrate", short_help="Measure this machine and write its profile.")
def calibrate_command(
    budget: Annotated[str, typer.Option("--budget", metavar="TIME", help="time to spend, e.g. 30s or 5min")] = "2min",
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="where the profile is written; for --on here by default")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace a profile that exists")] = False,
    device: Annotated[str, typer.Option("--device", metavar="KIND", help="cuda, mps or cpu; default the best")] = "",
    as_json: Json = False,
) -> None:
    """Measure what this machine can do, for --on here and --on profile:FILE; needs ridgeline[measure]."""
    from ridgeline.cli.calibrating import calibrate

    calibrate(budget, out, force=force, device=device, as_json=as_json)


@command("measure", cls=Grouped, short_help="Run a plan here, or judge a kernel.", flags=with_flags(RUN_FLAGS))
def measure_command(
    subject: Annotated[
        str | None, typer.Argument(metavar="[MODEL|SCENARIO.toml]", help="what to run for real, as for predict")
    ] = None,
    on: On = None,
    train: Train = True,
    serve: Annotated[bool, typer.Option("--serve", help="run a static batch: prompts, then token by token")] = False,
    kernel: Annotated[
        str | None, typer.Option("--kernel", metavar="FILE|FOLDER", help="judge kernel files instead of a plan")
    ] = None,
    candidate: Annotated[
        str, typer.Option("--candidate", metavar="NAME", help="with --kernel: which function is judged")
    ] = "candidate",
    compiled: Annotated[
        bool, typer.Option("--compile", help="with --kernel: also time torch.compile on the reference")
    ] = False,
    device: Annotated[str, typer.Option("--device", metavar="cpu|cuda", help="where it runs")] = "cpu",
    repeats: Annotated[
        int | None,
        typer.Option("--repeats", min=1, max=10_000, help="timed steps (5) or calls (20)", show_default=False),
    ] = None,
    limit: Annotated[float, typer.Option("--limit", min=1, help="seconds before a run is stopped")] = 900,
    append: Annotated[
        str | None, typer.Option("--append", metavar="FILE.tsv", help="add the measured rows to your own table")
    ] = None,
    as_json: Json = False,
    **words: Any,
) -> None:
    """Run a training plan or a batch on local devices, predicted against measured; or judge a candidate kernel."""
    from ridgeline.cli.measuring import measure

    measure(
        subject, kernel, words, serve=serve, on=on, candidate=candidate, device=device, repeats=repeats, limit_s=limit,
        compiled=compiled, append=append, as_json=as_json,
    )  # fmt: skip


def run(arguments: Sequence[str]) -> int:
    """The exit code of a command line, run in this process; defects are raised, not hidden."""
    if _JSON not in arguments:
        return _ended(arguments)[0]
    answer = Counted(sys.stdout)
    with redirect_stdout(answer):
        code, told = _ended(arguments)
        if told is not None and not answer.written:  # else it is told by the command's report
            print_refusal(told)
    return code


def _ended(arguments: Sequence[str]) -> tuple[int, dict[str, Any] | None]:
    """The exit code of a command line, and why there is no answer, in the form of `--json`."""
    try:
        ended = app(args=list(arguments), prog_name="ridgeline", standalone_mode=False)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None), None
    except typer.Abort:  # older releases of Typer say so where a person stops the program
        print("stopped", file=sys.stderr)
        return STOPPED, None
    except Misused as error:
        error.show()
        return MISUSED, misused(error, MISUSED)
    except RidgelineError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return error.exit_code, refusal(error)
    return ended if isinstance(ended, int) else 0, None


def _unwritten(error: OSError) -> int:
    """The exit code where the answer could not be written, which is told."""
    told = f"the answer cannot be written: {error.strerror}; free some space, or write elsewhere"
    print(f"error: {told}", file=sys.stderr)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left over would fail again at the end
    return RidgelineError.exit_code


def main() -> None:
    """The entry point of the console script."""
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _UNWRITABLE:
            sys.exit(_unwritten(error))
        print(f"internal error: {type(error).__name__}: {error}", file=sys.stderr)
        print("this is a defect of ridgeline; please report it with the command line and files used", file=sys.stderr)
        if _JSON in sys.argv[1:]:
            print_refusal(defect(error, DEFECT))
        code = DEFECT
    sys.exit(code)


if __name__ == "__main__":
    main()
