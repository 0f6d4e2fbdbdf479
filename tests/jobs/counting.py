"""A storage that counts what is asked of it: what a reader costs, without a clock."""

from __future__ import annotations

from typing import Any

from pipeline.storage import Storage


class CountingStorage(Storage):
    """`reads` objects or ranges were read, `bytes` in all; `lists` prefixes were listed; `probes` existence was asked."""

    def __init__(self, url: str):
        super().__init__(url)
        self.reset()

    def reset(self) -> None:
        self.reads = self.bytes = self.lists = self.probes = 0

    def read_bytes(self, key: str) -> bytes:
        data = super().read_bytes(key)
        self.reads += 1
        self.bytes += len(data)
        return data

    def read_range(self, key: str, start: int, length: int) -> bytes:
        data = super().read_range(key, start, length)
        self.reads += 1
        self.bytes += len(data)
        return data

    def children(self, prefix: str) -> list[str]:
        self.lists += 1
        return super().children(prefix)

    def keys(self, prefix: str) -> list[str]:
        self.lists += 1
        return super().keys(prefix)

    def exists(self, key: str) -> bool:
        self.probes += 1
        return super().exists(key)

    def counts(self) -> dict[str, Any]:
        return {"reads": self.reads, "bytes": self.bytes, "lists": self.lists, "probes": self.probes}
