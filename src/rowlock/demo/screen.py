"""What the demo shows: colours and a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn


class Screen:
    """Lines with the time since the start; below them, on a terminal, how far it is."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self._begun = time.monotonic()
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("[dim]{task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._begun

    def bar(self) -> AbstractContextManager[object]:
        """The bar is shown within the block."""
        return self._bar

    def title(self, text: str, more: str) -> None:
        """The first line."""
        self.console.print(f"[bold]{escape(text)}[/bold][dim]: {escape(more)}[/dim]")

    def heading(self, text: str) -> None:
        """A line above others."""
        self.console.print(f"\n[bold]{escape(text)}[/bold]")

    def happened(self, text: str, style: str = "") -> None:
        """Something that has just happened."""
        said = f"[{style}]{escape(text)}[/{style}]" if style else escape(text)
        self.console.print(f"[dim]{self.seconds:5.1f} s[/dim]  {said}")

    def progress(self, what: str, done: int, total: int) -> None:
        """How far it is."""
        self._bar.update(self._task, description=what, completed=done, total=total)

    def proof(self, held: bool, claim: str, shown: str) -> None:
        """A claim, whether the tables bear it out, and what they say."""
        colour, mark = ("green", "ok    ") if held else ("bold red", "FAILED")
        if self.console.is_terminal:
            mark = "✓" if held else "✗"
        self.console.print(f"  [{colour}]{mark}[/{colour}]  {escape(claim.ljust(40))}  [dim]{escape(shown)}[/dim]")

    def text(self, text: str) -> None:
        """A plain line."""
        self.console.print(escape(text))
