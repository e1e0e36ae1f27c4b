"""Lay out a run in the available memory so that a pass copies least, or count what the smallest layout lacks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..errors import BadInput
from .sizes import (
    GB,
    SMALL_MODELS,
    PlanRequest,
    Sizes,
    Stored,
    card_bytes,
    image_bytes,
    most,
    phase_parts,
    split_parts,
    streamed_layers,
    streaming,
)

MOST_GB = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """The layout of a run in `vram` GB, of which it can use `usable` bytes.

    `stored`: how the target's weights are. `parts`: bytes on the device by phase (draft, decode, score,
    target) and part; `side_parts`: on the second device, if any. `streamed`: number of streamed layers by
    transformer. If the run does not fit, this is the smallest layout.
    """

    vram: float
    usable: int
    request: PlanRequest
    stored: Stored
    sizes: Sizes
    parts: Mapping[str, Mapping[str, int]]
    side_parts: Mapping[str, Mapping[str, int]]
    streamed: Mapping[str, int]

    @property
    def fp8(self) -> bool:
        """True if the target's linear weights are fp8."""
        return self.stored == "fp8"

    @property
    def fits(self) -> bool:
        """True if the run fits."""
        return self.missing == 0

    @property
    def peak(self) -> int:
        """Bytes of the phase that needs most."""
        return most(self.parts)

    @property
    def missing(self) -> int:
        """Bytes missing for the run to fit; 0 if it fits."""
        return max(0, self.peak - self.usable)

    @property
    def copied(self) -> Mapping[str, int]:
        """Bytes of each transformer's weights that are copied in every pass."""
        return {role: count * self.sizes.layers[role] for role, count in self.streamed.items()}


def plan(vram: float, request: PlanRequest, *, card: bool = False) -> Plan:
    """Return the layout of a run in `vram` GB (1e9 bytes) that copies least in a pass.

    `card`: `vram` is the size of a card as sold, of which `card_bytes()` can be used.
    Raises `BadInput` for an invalid amount.
    """
    if not 0 < vram <= MOST_GB:
        raise BadInput(f"the device's memory is {vram} GB; give a number such as 24")
    candidates = _candidates(vram, card_bytes(vram) if card else int(vram * GB), request)
    if fitting := [candidate for candidate in candidates if candidate.fits]:
        return min(fitting, key=lambda layout: (sum(layout.copied.values()), layout.fp8, layout.peak))
    return _smallest(candidates)


def least_bytes(request: PlanRequest) -> int:
    """Return the peak of the smallest layout of a run."""
    return _smallest(_candidates(0.0, 0, request)).peak


def _smallest(candidates: Sequence[Plan]) -> Plan:
    return min(candidates, key=lambda candidate: (candidate.peak, not candidate.fp8))


def _candidates(vram: float, usable: int, request: PlanRequest) -> list[Plan]:
    """Return every layout: with no layers streamed, the target's, or both models'; each also with fp8."""
    streamable = [role for role in ("target", "drafter") if role in request.parts]
    lay_out = partial(Plan, vram=vram, usable=usable, request=request)
    layouts = []
    choices: tuple[Stored, ...] = ("plain", "fp8") if request.stored is None else (request.stored,)
    for stored in choices:
        sizes = Sizes.of(request, stored=stored)
        whole, side_parts = split_parts(phase_parts(request, sizes), request)
        for count in range(len(streamable) + 1):
            streamed = streamed_layers(whole, request, sizes, streamable[:count], usable)
            parts = streaming(whole, sizes, streamed)
            layouts.append(
                lay_out(stored=stored, sizes=sizes, parts=parts, side_parts=side_parts, streamed=streamed)
            )
    return layouts


# --- plans as text

PART_NAMES = {
    "target": "target weights",
    "drafter": "drafter weights",
    "target control": "target's control module",
    "drafter control": "drafter's control module",
    "vae": "VAE weights",
    "scorer": "scorer weights",
    "vae state": "VAE state",
    "working": "temporary buffers",
}
PHASE_NAMES = {
    "draft": "drafting",
    "decode": "decoding",
    "score": "scoring",
    "target": "generating with the target",
}


def plan_text(plan: Plan) -> str:
    """Describe a plan in a few lines."""
    request = plan.request
    sizes = {role: f"{model.config.size} {role}" for role, model in request.models.items()}
    models = [model for role, model in sizes.items() if role in request.parts]
    video = f"{request.width}x{request.height}, {request.blocks} blocks"
    host = f"{request.where[0].upper()}{request.where[1:]}"
    card = plan.usable != int(plan.vram * GB)
    room = f"in {plan.vram:g} GB"
    if card:
        room = f"on a card of {plan.vram:g} GB, of which {gigabytes(plan.usable)} (1e9 bytes) can be used"
    lines = [f"{host}: {', '.join(models)}, {video}, {room}"]
    if plan.fits:
        device = "the second device" if request.side else "the device"
        encoder = f"The text encoder reads the prompt on {device} before the other models come."
        lines += [f"Fits: {layout(plan)}.", encoder]
    else:
        missing = f"{gigabytes(plan.missing)} are missing of {gigabytes(plan.peak)}"
        lines.append(f"Does not fit: even with {layout(plan)}, {missing}.")
        if offers := "; ".join(savings(request, plan.usable)):
            lines.append(f"To choose: {offers}.")
    phase = max(plan.parts, key=lambda name: sum(plan.parts[name].values()))
    lines.append(f"Peak while {PHASE_NAMES[phase]}, {gigabytes(plan.peak)}: {_inside(plan.parts[phase])}.")
    if plan.side_parts:
        names = [PART_NAMES[role].removesuffix(" weights") for role in SMALL_MODELS if role in request.parts]
        phase = max(plan.side_parts, key=lambda name: sum(plan.side_parts[name].values()))
        peak = gigabytes(most(plan.side_parts))
        lines.append(
            f"The second device holds {' and '.join(names)}, with a peak while {PHASE_NAMES[phase]}, {peak}: "
            f"{_inside(plan.side_parts[phase])}."
        )
    if request.where == "in ComfyUI":
        lines.append(image_note(request.width, request.height, request.target.block_frames * request.blocks))
    return "\n".join(lines)


def image_note(width: int, height: int, latent_frames: int) -> str:
    """Return a note on the main memory that a video's frames take in ComfyUI."""
    size = gigabytes(image_bytes(width, height, latent_frames))
    frames = f"IMAGE of {4 * latent_frames - 3} frames"
    return f"The {frames} takes {size} of the computer's memory, and twice that while it is put together."


def _inside(parts: Mapping[str, int]) -> str:
    largest_first = sorted(parts.items(), key=lambda item: -item[1])
    return ", ".join(f"{PART_NAMES.get(name, name)} {gigabytes(size)}" for name, size in largest_first)


def memory_notes(
    held: Mapping[str, tuple[int, int]], planned: int | None, peak: int | None, *, lazy: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the report's note on a run's memory; nothing if it was neither planned nor measured.

    `held`: bytes on the device and all bytes, by model. `lazy`: models that ComfyUI loads as they are used, whose
    copies are not known and which both peaks leave out.
    """
    without = f"without the weights of {', '.join(lazy)}: " if lazy else ""
    parts = []
    for role, (resident, size) in held.items():
        amount = gigabytes(resident)
        copied = ""
        if role in lazy and amount != gigabytes(size):
            amount += f" of {gigabytes(size)}"
        elif role not in lazy and resident < size:
            copied = f" and {gigabytes(size - resident)} copied over in every pass"
        parts.append(f"{role} {amount} on the device{copied}")
    parts += [f"{without}planned peak {gigabytes(planned)}"] if planned else []
    parts += [f"measured peak {gigabytes(peak)}"] if peak is not None else []
    parts += [f"{100 * (peak / planned - 1):+.1f} %"] if planned and peak else []
    return (f"Memory: {', '.join(parts)}.",) if planned or peak is not None else ()


def savings(request: PlanRequest, usable: int) -> tuple[str, ...]:
    """Return up to two choices that save memory, with their bytes and cost in quality.

    Choices that suffice alone come first, in the order of their cost.
    """
    typed = request.where == "on the command line"
    fp8_cache = replace(request, execution=replace(request.execution, kv_dtype="float8_e4m3fn"))
    ways = [
        ("--kv-dtype float8_e4m3fn" if typed else "kv_dtype float8_e4m3fn", "blocks change by 3 %", fp8_cache),
        ("a TAEHV as --vae" if typed else "a TAEHV in vae", "rougher pixels", replace(request, vae="tae")),
    ]
    if typed:  # in ComfyUI, the VAE is in half precision anyway
        ways.insert(0, ("--vae-dtype bfloat16", "pixels are rounded", replace(request, vae_dtype="bfloat16")))
    now = least_bytes(request)
    needs = [(least_bytes(less), name, cost) for name, cost, less in ways]
    needs.sort(key=lambda way: way[0] > usable)
    return tuple(f"{name} saves {gigabytes(now - then)} ({cost})" for then, name, cost in needs if then < now)[:2]


def layout(plan: Plan) -> str:
    """Describe a layout: the target's dtype, the drafter's if it is stored smaller, and what every pass copies."""
    request = plan.request
    dtypes = {"target": request.dtype if plan.stored == "plain" else plan.stored}
    if request.drafter_stored != "plain":
        dtypes["drafter"] = request.drafter_stored
    stored = ", ".join(f"{role} in {dtype}" for role, dtype in dtypes.items() if role in request.parts)
    copied = " and ".join(
        f"{100 * size / plan.sizes.weights[role]:.0f} % of the {role}'s weights ({gigabytes(size)})"
        for role, size in plan.copied.items()
    )
    placed = f"{copied} are copied over in every pass" if copied else "everything stays on the device"
    return ", ".join(filter(None, (stored, placed)))


def plan_table(plans: Sequence[Plan]) -> str:
    """Return a table with a line per plan."""
    lines = [f"{'GB':>4} {'peak':>6}  layout"]
    for plan in plans:
        if plan.fits:
            lines.append(f"{plan.vram:4g} {plan.peak / GB:6.1f}  {layout(plan)}")
        else:
            lines.append(f"{plan.vram:4g} {'-':>6}  does not fit: {gigabytes(plan.missing)} are missing")
    return "\n".join(lines)


def gigabytes(size: int) -> str:
    """Format bytes in GB or MB."""
    return f"{size / GB:.1f} GB" if size >= 0.1 * GB else f"{size / 1e6:.1f} MB"
