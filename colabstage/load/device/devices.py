"""The torch devices that this computer has."""

from __future__ import annotations

from colabstage.errors import MissingDependencyError, OptionError

try:
    import torch
except ImportError as error:
    _msg = "CudaDataLoader and make_loader need torch. Install it with: pip install torch"
    raise MissingDependencyError(_msg) from error


def usable_device(device: str | torch.device) -> torch.device:
    """The device of that name, with its number where there may be several.

    Raises:
        OptionError: there is no such device here.
    """
    try:
        # An empty tensor is there at once, and on the device that "cuda" without a number means now, in this thread.
        return torch.empty(0, device=torch.device(device)).device
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        msg = f"device={str(device)!r} cannot be used here ({reason}). On Colab choose Runtime, Change runtime type."
        raise OptionError(msg) from error


def free_device_memory(device: torch.device) -> int | None:
    """Bytes of a CUDA device that this process may still take, what torch holds ready there included; `None` for
    devices that share this computer's memory or do not tell."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free) + int(idle)
