"""The rollout worker: prompts to rollouts, rewards and samples, in one asyncio process."""
