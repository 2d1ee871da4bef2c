"""Parts that drafting methods share: they draw chains and trees, and read tokens with a draft."""
