"""The plain agent loop, in process: sample an action, let the environment answer, until the episode ends.

The prompt grows by exact ids and no sampled token is tokenised again:

    prompt_0     = renderer.prompt(opening, tools)
    prompt_{k+1} = prompt_k + completion_k + renderer.observation(observation_{k+1})

Recalled lessons stand in the system message, after the policy. Turn k samples with a seed derived from the episode's
seed and k, so an episode depends on nothing but its plan, its task and the weights.

A turn's `state_digest` and `env_facts` describe the world after its action. The verdict of the world is the outcome;
its criteria are feedback. Degenerate cases: a completion cut off by its token limit is an unparsable action; a prompt
that leaves no room for a completion ends the episode with `length`; an engine or environment that fails ends it with
`error: ...` and no outcome.
"""

from collections.abc import Sequence
from dataclasses import replace

from components.harnesses._episode import Finished, judged, play, read_action
from components.plugins import plugin, version_of
from components.protocols import Completion, Engine, Renderer, RolloutPlan, World
from components.records import Message, Task, Trajectory, Turn, Usage
from components.serial import digest


@plugin
class ToolLoop:
    max_context_tokens: int = 2048
    """Most tokens of prompt and completion together; what the engine can hold, or less."""

    async def run(
        self, task: Task, world: World, engine: Engine, renderer: Renderer, plan: RolloutPlan
    ) -> Trajectory:
        """One episode; a failure inside is its stop reason."""
        tools = task.tools or world.tools
        speaker = _Speaker(self, tools, engine, renderer, plan)
        played = await play(world, task, plan.memory, speaker.act)
        trajectory = Trajectory(
            id=plan.trajectory_id,
            agent=plan.agent,
            turns=played.turns,
            task_id=task.id,
            group_id=plan.group_id,
            feedback=played.feedback,
            stop_reason=played.stop_reason,
            policy=played.turns[0].policy_version if played.turns else None,
            harness_version=version_of(self),
            memory_revision=plan.memory_revision,
            split=task.split,
            tools=tools,
        )
        return judged(world, task, trajectory)


class _Speaker:
    """The policy's side of one episode: the growing prompt and the engine."""

    def __init__(
        self,
        loop: ToolLoop,
        tools: Sequence[dict[str, object]],
        engine: Engine,
        renderer: Renderer,
        plan: RolloutPlan,
    ) -> None:
        self.loop, self.tools, self.plan = loop, tools, plan
        self.engine, self.renderer = engine, renderer
        self.context: tuple[int, ...] = ()
        """The last prompt with its completion."""

    async def act(self, index: int, observation: tuple[Message, ...]) -> Turn:
        prompt_ids = (
            (*self.context, *self.renderer.observation(observation))
            if index
            else self.renderer.prompt(observation, self.tools)
        )
        self._check_room(len(prompt_ids))
        seed = int(digest([self.plan.sampling.seed, index])[:15], 16)
        drawn = await self.engine.sample(prompt_ids, replace(self.plan.sampling, seed=seed))
        self.context = (*prompt_ids, *drawn.completion_ids)
        return self._turn(index, observation, prompt_ids, drawn)

    def _check_room(self, num_prompt_tokens: int) -> None:
        if num_prompt_tokens + self.plan.sampling.max_tokens > self.loop.max_context_tokens:
            raise Finished("length")

    def _turn(
        self,
        index: int,
        observation: tuple[Message, ...],
        prompt_ids: tuple[int, ...],
        drawn: Completion,
    ) -> Turn:
        parsed = self.renderer.parse(drawn.completion_ids)
        return Turn(
            index=index,
            observation=observation,
            action=read_action(parsed.message, parsed.problem, drawn.finish_reason),
            segments=parsed.segments,
            usage=Usage(input_tokens=len(prompt_ids), output_tokens=len(drawn.completion_ids)),
            finish_reason=drawn.finish_reason,
            prompt_ids=prompt_ids,
            completion_ids=drawn.completion_ids,
            logprobs=drawn.logprobs,
            policy_version=drawn.policy_version,
        )
