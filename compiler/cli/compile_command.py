"""`policyc compile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from policyc.compiler.cli.console import print_json, print_result, progress
from policyc.compiler.cli.tables import bundle_table
from policyc.compiler.describe import describe_bundle, to_json
from policyc.compiler.options import (
    CompileOptions,
    Golden,
    Rope,
    parse_camera,
    parse_precision,
)
from policyc.runtime_min.bundle import Bundle


def compile_command(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of the checkpoint.")],
    target: Annotated[
        list[str], typer.Option(help="Name of a profile (see `policyc targets`), or cpu.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The bundle, NAME.policy.")],
    precision: Annotated[
        str | None, typer.Option(help="bf16 or float32. Default: as the checkpoint is served.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Denoise steps.")] = None,
    views: Annotated[int | None, typer.Option(help="Camera slots.")] = None,
    prompt_slots: Annotated[int | None, typer.Option(help="Token slots of the prompt.")] = None,
    horizon: Annotated[int | None, typer.Option(help="Actions in a chunk.")] = None,
    batch: Annotated[list[int], typer.Option(help="Batch size; may be repeated.")] = [1],  # noqa: B006
    statistics: Annotated[str | None, typer.Option(help="Id of the statistics to use.")] = None,
    rope: Annotated[Rope | None, typer.Option(help="Rotary frequencies.")] = None,
    state_in_prompt: Annotated[
        bool | None, typer.Option(help="Write the robot's state into the prompt.")
    ] = None,
    camera: Annotated[
        list[str], typer.Option(help="ROBOT_NAME=CHECKPOINT_SLOT; may be repeated.")
    ] = [],  # noqa: B006
    default_prompt: Annotated[
        str | None, typer.Option(help="Instruction where none is given.")
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer file.")] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder for compiled kernels.")] = None,
    choices: Annotated[
        Path | None, typer.Option(help="Measured kernel choices, of `policyc tune`.")
    ] = None,
    dump: Annotated[
        Path | None, typer.Option(help="Write the graph after every pass here.")
    ] = None,
    golden: Annotated[Golden, typer.Option(help="How golden vectors are made.")] = Golden.FLOAT32,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Compile a checkpoint into a bundle. No GPU is needed, of the target's kind or any other."""
    options = CompileOptions(
        checkpoint=checkpoint,
        output=output,
        targets=tuple(target),
        precision=None if precision is None else parse_precision(precision),
        steps=steps,
        views=views,
        prompt_slots=prompt_slots,
        horizon=horizon,
        batch=tuple(sorted(batch)),
        statistics=statistics,
        rope=rope,
        state_in_prompt=state_in_prompt,
        cameras=tuple(parse_camera(text) for text in camera),
        default_prompt=default_prompt,
        tokenizer=tokenizer,
        cache=cache,
        choices=choices,
        dump=dump,
        golden=golden,
    )
    _compile(options, json)


def _compile(options: CompileOptions, json: bool) -> None:
    from policyc.compiler.compile import compile_checkpoint

    with progress(f"compiling {options.checkpoint}") as report:
        compile_checkpoint(options, report)
    description = describe_bundle(Bundle.open(options.output))
    if json:
        print_json(to_json(description))
    else:
        print_result(bundle_table(description))
