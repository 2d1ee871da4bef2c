"""The loop of speculative decoding: prefill, rounds, ends of rows, and the drafters' base."""
