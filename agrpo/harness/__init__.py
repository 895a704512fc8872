"""Training agents that run inside their own framework, through an endpoint that records their turns as token ids."""
