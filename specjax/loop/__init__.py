"""The loop of speculative decoding: prefill, rounds, the ends of rows, and the base class of drafters."""
