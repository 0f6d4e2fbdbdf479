"""A copy of the training state in host memory, for a checkpoint to be written from while training goes on.

Only what this rank holds is copied: its shards, so a snapshot costs one further copy of the local state (weights and
moments: 8 bytes a parameter under Muon, 12 under AdamW, divided by the ranks) in host memory. The buffers are kept and
reused from one milestone to the next: warm pages take a copy several times faster than new ones. They are pinned where
the state lies on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.distributed.tensor import DTensor


class Snapshot:
    """The buffers of one rank. Not to be taken while a writer still reads the last one."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Host memory that the buffers hold."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    @torch.no_grad()
    def take(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The same tensors by name, in buffers of our own; sharded ones stay sharded as they are."""
        copies: dict[str, torch.Tensor] = {}
        on_gpu = False
        for name, tensor in tensors.items():
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            buffer = self._buffer(name, local)
            buffer.copy_(local, non_blocking=local.is_cuda)
            on_gpu |= local.is_cuda
            # DTensor.from_local would move the buffer to the mesh's device.
            copies[name] = (
                DTensor(buffer, tensor._spec, requires_grad=False) if isinstance(tensor, DTensor) else buffer
            )
        if on_gpu:
            torch.cuda.synchronize()
        return copies

    def _buffer(self, name: str, local: torch.Tensor) -> torch.Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != local.shape or buffer.dtype != local.dtype:
            buffer = torch.empty(local.shape, dtype=local.dtype, pin_memory=local.is_cuda)
            self._buffers[name] = buffer
        return buffer
