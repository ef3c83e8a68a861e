"""A request that is refused, and what was there: what a smaller trace has to keep."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RefusedRequest:
    """A request that is refused, and what was there, in bytes.

    ``room``: what the allocator may take of the card. ``live``: requests in use, each rounded up
    to 512. ``free``: within segments that are held. ``largest``: the largest request up to it.
    ``saved``: settings under which the same requests pass, "" for none. ``kind``: fragmentation
    where what is live and the request fit the room together, else capacity.
    """

    index: int
    kind: str
    request_bytes: int
    rounded_bytes: int
    room_bytes: int
    live_bytes: int
    reserved_bytes: int
    free_bytes: int
    largest_bytes: int
    saved: str = ""

    @property
    def stranded(self) -> bool:
        """Whether the free bytes within held segments alone would be enough for the request."""
        return self.kind == "fragmentation" and self.free_bytes >= self.rounded_bytes

    @property
    def invariants(self) -> list[str]:
        """What every candidate keeps, in words."""
        fits = "are more than the card has"
        if self.kind == "fragmentation":
            fits = "fit the card: it fails for the layout alone"
        kept = [f"{self.kind}: what is live and the request together {fits}"]
        if self.stranded:
            kept.append("free bytes within held segments would be enough for it")
        if self.saved:
            kept.append(f"under {self.saved} every request is met")
        return [
            *kept,
            f"the same request of {self.request_bytes:,} bytes fails, none before it",
            f"the allocator may take {self.room_bytes:,} bytes of the card",
            f"no request is larger than the largest before it, {self.largest_bytes:,} bytes",
        ]
