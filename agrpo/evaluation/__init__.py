"""How good is a policy, and is it better than another? Same prompts, same rewards, an interval beside each number."""
