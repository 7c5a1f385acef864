"""The workflow in which a model calls tools: it writes, its calls are run, their results are shown to it, and it goes on.

What the model writes is trained, token by token as it was sampled; what tools say is not. A call that cannot be read, an unknown
tool, arguments that do not fit, a tool that fails or overruns: all of it is text for the model, never the end of the run.
Left out: tools with a state of their own, and whoever speaks without being called (`rollout.multi_turn`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from partita.records import Prompt, Sample
from partita.rollout.dialogue import Dialogue
from partita.rollout.episodes import RolloutError
from partita.rollout.workflow import Episode
from partita.tasks.chat import Chat
from partita.tasks.tools.calls import Found, Malformed, ToolCall, call_format
from partita.tasks.tools.runner import ToolResult, ToolRunner, error_result
from partita.tasks.tools.schema import ArgumentError, Tool, ToolError, tools_of
from partita.tasks.tools.showing import Showing, cleaned, showing_of


@dataclass
class Tally:
    """What became of the calls of one trajectory. failed: of them, those whose result was an error, malformed ones included."""

    calls: int = 0
    malformed: int = 0
    failed: int = 0
    out_of_turns: bool = False

    def metrics(self, turns: int) -> dict[str, float]:
        """Shares are of this trajectory's calls, and absent where there are none."""
        found = {"calls": float(self.calls), "turns": float(turns), "out_of_turns": float(self.out_of_turns)}
        if self.calls:
            found |= {"error_share": self.failed / self.calls, "malformed_share": self.malformed / self.calls}
        return {f"tools/{name}": value for name, value in found.items()}


@dataclass(eq=False)
class ToolUse:
    """A workflow with tools. All fields are keys of `rollout.workflow_kwargs`.

    tools: functions, or names as path/file.py:function. max_turns: the model's turns; calls in the last one are not made.
    max_calls: calls of a trajectory that are made; the model is told of those that are not. calls: hermes, llama3, or a regular
    expression (`tasks.tools.calls.call_format`). instruction: the system message about the tools, with {tools} for their list;
    None: the chat template shows them where it can, else a message of ours; empty: nothing is said. timeout_seconds: of a call.
    max_result_tokens: what the model sees of a result. processes, memory_gb: of the workers that calls run in.
    tools_column: a column with the names of the tools that a row may use; None: all of them.

    A trajectory ends with a turn without a call. `stop_reason` is "length" where a turn was cut, and where max_turns or the
    context ends it before. Raises ToolError when it is made, for tools and values that cannot be used.
    """

    tools: Sequence[str | Callable[..., object]]
    max_turns: int = 8
    max_calls: int = 16
    calls: str = "hermes"
    instruction: str | None = None
    timeout_seconds: float = 10.0
    max_result_tokens: int = 256
    processes: int = 4
    memory_gb: float | None = 1.0
    tools_column: str | None = None

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_calls", "timeout_seconds", "max_result_tokens", "processes"):
            if not getattr(self, name) > 0:
                raise ToolError(f"{name}={getattr(self, name)!r}; expected more than 0")
        self._tools = tools_of([self.tools] if isinstance(self.tools, str) else self.tools)
        self._format = call_format(self.calls, self._tools)
        if self.instruction is None and not self._format.how:
            raise ToolError(
                "calls is a regular expression, and nobody tells the model how to call: set instruction to the text of a system "
                'message, with {tools} where the tools are listed; or to "" where the rows tell it'
            )
        self._runner = ToolRunner(
            self._tools, timeout_seconds=self.timeout_seconds, processes=self.processes, memory_gb=self.memory_gb
        )
        # with the chat that each was made for, so that its id stays its own
        self._showings: dict[tuple[int, tuple[str, ...]], tuple[Chat, Showing]] = {}

    async def run(self, episode: Episode) -> Sample:
        """See `Workflow`."""
        showing, tally = self._showing(episode), Tally()
        talk = Dialogue(replace(episode, chat=showing.chat), showing.asked(episode.prompt.messages))
        if talk.over:
            raise RolloutError(
                f"row {episode.prompt.uid}: with its tools it fills the context of this model, and no answer has room; lower "
                "train_dataset.max_length, or describe the tools in fewer words"
            )
        while True:
            said = await talk.ask()
            found = self._format.calls(said.text) if said.stop_reason == "stop" else []
            if found and talk.turns == self.max_turns:
                tally.out_of_turns = True
                talk.cut()
            elif found and talk.tell(showing.told(await self._results(found, showing, tally))):
                continue
            scored = await episode.score(talk.text, talk.trained, talk.stop_reason, talk.transcript)
            return talk.sample(scored, tally.metrics(talk.turns))

    def close(self) -> None:
        """End the worker processes."""
        self._runner.close()

    def _showing(self, episode: Episode) -> Showing:
        """How the model is shown the tools of this row."""
        tools, chat = self._allowed(episode.prompt), episode.chat
        key = id(chat), tuple(tool.name for tool in tools)
        if key not in self._showings:
            self._showings[key] = (chat, showing_of(chat, tools, self._format, self.instruction))
        return self._showings[key][1]

    def _allowed(self, prompt: Prompt) -> Sequence[Tool]:
        """Raises RolloutError for a column that does not name some of the tools."""
        if self.tools_column is None:
            return self._tools
        wanted = prompt.row.get(self.tools_column)
        names = wanted.replace(",", " ").split() if isinstance(wanted, str) else wanted
        known = [tool.name for tool in self._tools]
        if not isinstance(names, list | tuple) or not names or any(name not in known for name in names):
            raise RolloutError(
                f"row {prompt.uid}: tools_column={self.tools_column!r} holds {wanted!r}; expected names of {', '.join(known)}"
            )
        return [tool for tool in self._tools if tool.name in names]

    async def _results(self, found: Sequence[Found], showing: Showing, tally: Tally) -> list[tuple[str, ToolResult]]:
        """What the model is told of each call, with the tool's name, in the order of the calls; they run at the same time."""
        left = max(0, self.max_calls - tally.calls)
        told = await asyncio.gather(*(self._result(one, showing.tools) for one in found[:left]))
        told += [error_result(f"no more than {self.max_calls} calls can be made")] * len(found[left:])
        tally.calls += len(found)
        tally.malformed += sum(isinstance(one, Malformed) for one in found)
        tally.failed += sum(one.failed for one in told)
        names = [one.name if isinstance(one, ToolCall) else "error" for one in found]
        clean = [ToolResult(cleaned(one.text, showing.chat, self.max_result_tokens), one.failed) for one in told]
        return list(zip(names, clean, strict=True))

    async def _result(self, found: Found, tools: Sequence[Tool]) -> ToolResult:
        if isinstance(found, Malformed):
            return error_result(found.why)
        tool = next((tool for tool in tools if tool.name == found.name), None)
        if tool is None:
            return error_result(f"no tool is called {found.name!r}; there are {', '.join(tool.name for tool in tools)}")
        try:
            arguments = tool.read(found.arguments)
        except ArgumentError as error:
            return error_result(str(error))
        return await self._runner.call(tool, arguments)
